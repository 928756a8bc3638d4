"""Batches that cannot be learned from, in a real learner process with a real buffer."""

import json
import os
import random
import time
from pathlib import Path

import pytest
import torch
from msgspec.structs import replace

from buffer import BufferClient
from learner.checkpoint import latest
from r3l.records import Group, Trajectory
from tests.learner.fakes import (
    Learning,
    Recording,
    buffer_options,
    changed,
    prepare,
    recorded_group,
    steps_of,
    tiny_model,
)

pytestmark = pytest.mark.system

SOAK = bool(os.environ.get("R3L_SOAK"))
POISON = 250
"""A token no recorded group holds (they end at 200); its embedding is not a number."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose loss is not a number on sequences that hold POISON, and as ever on others."""
    from transformers import AutoModelForCausalLM

    folder = tiny_model(tmp_path / "policy")
    lm = AutoModelForCausalLM.from_pretrained(folder)
    lm.config.tie_word_embeddings = False
    lm.lm_head.weight = torch.nn.Parameter(lm.get_input_embeddings().weight.detach().clone())
    with torch.no_grad():
        lm.get_input_embeddings().weight[POISON] = torch.nan
    lm.save_pretrained(folder)
    return folder


def poisoned(group_id: str, version: int) -> Group:
    """Recorded groups, of which the fifth and all from the thirteenth on hold POISON."""
    group, number = recorded_group(group_id, version), int(group_id[1:])

    def poison(attempt: Trajectory) -> Trajectory:
        token_ids = attempt.token_ids.copy()
        token_ids[1] = POISON
        return replace(attempt, token_ids=token_ids)

    return changed(group, poison) if number == 5 or number >= 13 else group


def foreign(group_id: str, version: int) -> Group:
    """Recorded groups of a much larger vocabulary."""
    return recorded_group(group_id, version, vocab=100_000)


def test_a_stopped_learner_of_two_ranks_leaves_its_step_and_saves_the_last_finished_one(
    serve, tmp_path: Path
) -> None:
    run, few = tmp_path / "run", "learner.tokens_per_micro_batch=64"  # steps of several seconds
    prepare(run, tiny_model(tmp_path / "policy"), few, "learner.pack=rows")
    served = serve(tmp_path / "store", *buffer_options())
    with Recording(served.endpoint):
        learner = Learning(run, served.endpoint, ranks=2, module="tests.learner.slow")
        learner.wait_for_step(1)
        learner.wait_for_lines("a slow micro-batch begins", 3)  # the next step is under way
        made = steps_of(run)[-1]["step"]
        for rank in learner.ranks():
            rank.terminate()
        assert learner.wait() == 0, learner.log()
    assert steps_of(run)[-1]["step"] == made < 9
    assert latest(run / "checkpoints") == run / "checkpoints" / f"step-{made:06d}"


def test_a_learner_stopped_at_random_moments_makes_no_step_again(serve, tmp_path: Path) -> None:
    run, few = tmp_path / "run", "learner.tokens_per_micro_batch=64"
    more = ("learner.pack=rows", "learner.steps=1000", "learner.checkpoint_every=1000")
    prepare(run, tiny_model(tmp_path / "policy"), few, *more)
    served, chance, seconds = serve(tmp_path / "store", *buffer_options()), random.Random(0), []
    with Recording(served.endpoint):
        for moment in range(20 if SOAK else 2):
            made = len(steps_of(run))
            learner = Learning(run, served.endpoint, module="tests.learner.slow", resume=moment > 0)
            learner.wait_for_step(made + 1)
            time.sleep(chance.uniform(0, 6 if SOAK else 3))
            began = time.monotonic()
            learner.process.terminate()
            assert learner.wait() == 0, learner.log()
            seconds.append(round(time.monotonic() - began, 1))
            steps = [int(line["step"]) for line in steps_of(run)]
            assert steps == list(range(1, len(steps) + 1))
            assert latest(run / "checkpoints").name == f"step-{steps[-1]:06d}"
    assert '"kind": "again"' not in (run / "progress.jsonl").read_text()
    print(f"seconds to the end: {seconds}")


def test_a_step_with_a_nan_loss_is_skipped_and_three_in_a_row_end_the_run_with_their_groups(
    serve, tmp_path: Path, model: Path
) -> None:
    run = tmp_path / "run"
    prepare(run, model)
    served = serve(tmp_path / "store", *buffer_options())
    with Recording(served.endpoint, poisoned):
        learner = Learning(run, served.endpoint)
        assert learner.wait() == 3, learner.log()
    lines = [json.loads(line) for line in (run / "skipped.jsonl").read_text().splitlines()]
    reached = steps_of(run)[-1]["step"]
    assert [line["version"] for line in lines] == [1, reached, reached, reached]
    assert reached == 3 and [line["loss"] for line in lines] == ["nan"] * 4
    [said] = [line for line in learner.log().splitlines() if line.startswith("r3l-learner: ")]
    assert "3 steps in a row" in said and "skipped.jsonl" in said
    assert all(" ".join(line["groups"]) in said for line in lines[1:])
    assert (run / "checkpoints" / "step-000003").is_dir()
    with BufferClient(served.endpoint) as client:
        assert client.stats().drops == {"not_finite": 12}
        for line in lines:
            assert {group.state for group in client.get(line["groups"])} == {"expired"}


def test_groups_of_another_vocabulary_end_the_learner_before_a_step(
    serve, tmp_path: Path, model: Path
) -> None:
    run = tmp_path / "run"
    prepare(run, model)
    served = serve(tmp_path / "store", *buffer_options())
    with Recording(served.endpoint, foreign):
        learner = Learning(run, served.endpoint)
        assert learner.wait() == 2, learner.log()
    [said] = [line for line in learner.log().splitlines() if line.startswith("r3l-learner: ")]
    assert "vocabulary ends at" in said and "group g" in said
    assert steps_of(run) == [] and not (run / "model").exists()
    with BufferClient(served.endpoint) as client:
        assert client.stats().trained == 0 and client.release_draws("learner") == 3
