"""The steps of a real run, executed again: the same loss and the same bytes."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from msgspec.structs import replace

from buffer.groups import retention
from buffer.groups.unit_of_work import UnitOfWork
from buffer.indexes.index import Index
from buffer.server.service import rules_of
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.viewer.attempt_page import Texts, plain_group
from learner.cli import main
from learner.offline.replayed_run import Replayed, ReplayedRun
from learner.step.draw_rows import make_rows, trained_attempts
from r3l.files.checksums import without_checksum
from r3l.files.whole_file import write_json
from r3l.run.config import RunConfig
from r3l.run.files.json_lines import encoded
from r3l.run.files.run_folder import RunFolder
from r3l.run.settings.buffer import RetentionConfig
from r3l.training.measures.processor import processor
from r3l.weights.journal import Journal
from tests.learner.fakes import ROOT
from tests.learner.offline.conftest import alike, bases, ended_run

pytestmark = pytest.mark.system


def ask(*command: object) -> Any:
    return CliRunner().invoke(main, [str(one) for one in command], catch_exceptions=False)


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def run(ended: Path, tmp_path: Path) -> Path:
    """A copy, for tests that harm it."""
    return Path(shutil.copytree(ended, tmp_path / "run"))


ALL = {"loss", "gradient norm", "weights of the checkpoint", "weights of the journal"}


@pytest.mark.parametrize(
    ("step", "steps", "compared"),
    [
        (2, [1, 2], ALL - {"weights of the checkpoint"}),  # from the model that the run began with
        (6, [4, 5, 6], ALL),
        (7, [7], ALL - {"weights of the checkpoint"}),
    ],
)
def test_a_replayed_step_has_the_loss_and_the_bytes_of_the_run(
    ended: Path, step: int, steps: list[int], compared: set[str]
) -> None:
    done = ask("replay", ended, step)
    assert done.exit_code == 0, done.output
    lines = [line for line in done.stdout.splitlines() if line.startswith("step ")]
    assert [int(line.split()[1].rstrip(":")) for line in lines] == steps
    assert all("loss same, gradient norm same" in line for line in lines)
    assert {part.removesuffix(" same") for part in lines[-1].split("; ")[1].split(", ")} == compared


RULES = {
    "recalled": (alike, ["algorithm.recall_count=2"]),
    "replayed": (
        bases,
        [
            "algorithm=spear",
            "buffer.sampler.reuse=2",
            "buffer.sampler.replay_share=0.5",
            "buffer.sampler.replay_staleness=5",
        ],
    ),
}


@pytest.fixture(scope="module", params=RULES)
def ruled(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A rule that brings attempts into a step, and the folder of a run that ended under it."""
    played, settings = RULES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, ended_run(folder, "env.train_tasks=5", *settings, played=played)


def test_a_replayed_step_has_the_recalled_and_replayed_attempts_of_the_run(
    ruled: tuple[str, Path],
) -> None:
    rule, run = ruled
    store = Store(run / "buffer", read_only=True)
    draws = [store_reads.trained_draw(store, step) for step in (4, 5, 6)]
    store.close()
    assert any(getattr(draw.row, rule) for draw in draws)
    done = ask("replay", run, 6)
    assert done.exit_code == 0 and done.output.count("loss same, gradient norm same") == 3
    assert "checkpoint same, " in done.output and "journal same" in done.output


def test_the_viewer_shows_how_the_trainer_trained_on_each_attempt(
    ruled: tuple[str, Path],
) -> None:
    rule, run = ruled
    replayed = ReplayedRun(run, 9)  # the last step, which the viewer shows of all its groups
    try:
        while replayed.version < 8:
            replayed.advance()
        draw = replayed.draw_of(9)
        assert getattr(draw.row, rule)
        trainer, algorithm = replayed.trainer, replayed.config.algorithm
        made = make_rows(trainer, algorithm, draw)
        rows = [row for row in made.rows if row.source is not None]
        with replayed.store.read() as txn:
            kept = txn.step(9).attempts
        assert tuple(replace(one, reliance=None) for one in kept) == trained_attempts(rows)
        for row, one in zip(rows, kept, strict=True):
            retry = row.source is not None and row.source.attempt.of >= 0
            assert (one.reliance is not None) == (retry and not row.reused)
        shown = _shown(replayed.store, [group.group_id for group in draw.groups])
    finally:
        replayed.close()
    assert len(rows) == len(shown) > 0
    for row in rows:
        assert row.source is not None
        into, stored, one = row.source
        advantage, tokens = shown[into, stored, one.slot]
        assert advantage == pytest.approx(float(row.advantages[row.mask].mean()), abs=1e-12)
        assert tokens is None or tokens == int(row.mask.sum())


def _shown(store: Store, group_ids: list[str]) -> dict[tuple[str, str, int], Any]:
    """(advantage, trained tokens) of each attempt that the viewer shows as trained; None for the
    tokens of attempts of other groups."""
    found: dict[tuple[str, str, int], Any] = {}
    for group_id in group_ids:
        page = plain_group(store, group_id, Texts(None))
        for slot in (slot for pair in page["pairs"] for slot in (pair["base"], pair["retry"])):
            if slot and slot["advantage"] is not None:
                tokens = sum(step["length"] for step in slot["steps"] if step["trained"])
                found[group_id, group_id, slot["slot"]] = slot["advantage"], tokens
        for one in page["recalled"]:
            found[group_id, one["group_id"], one["slot"]] = one["advantage"], None
    return found


def test_a_process_of_its_own_replays_a_step_with_the_threads_and_the_bytes_of_the_run(
    ended: Path, record_property: Callable[[str, object], None]
) -> None:
    """The run's process had two threads. On some processors MKL would use fewer if it could."""
    record_property("processor", processor())
    [machine] = RunFolder(ended).machines()
    assert (machine.facts["processor"], machine.facts["threads"]) == (processor(), "2")
    steps = RunFolder(ended).history().steps
    assert len(steps) == 9 and all(line.metrics["learner/threads"] == 2 for line in steps)
    command = [sys.executable, "-m", "learner.cli", "replay", str(ended), "6"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    said = f"on {processor()}: {done.stdout}{done.stderr}"
    assert done.returncode == 0 and done.stdout.count("loss same, gradient norm same") == 3, said
    assert "checkpoint same, " in done.stdout and "elsewhere" not in done.stdout, said


def test_a_step_that_was_recorded_elsewhere_is_said_to_be(run: Path) -> None:
    [machine] = RunFolder(run).machines()
    other = {**machine.facts, "processor": "Another", "torch": "2.0", "threads": "1"}
    RunFolder(run).machines_file.unlink()
    RunFolder(run).add_machine(0, other)
    done = ask("replay", run, 2)
    [said] = [line for line in done.stdout.splitlines() if "elsewhere" in line]
    assert said == (
        "step 1: recorded elsewhere, so the last bits may differ: "
        f"processor Another there, {processor()} here; torch 2.0 there, {torch.__version__} here"
    )


def test_a_step_that_is_not_the_runs_is_said_to_differ(run: Path) -> None:
    lines = [
        without_checksum(json.loads(line))
        for line in (run / "progress.jsonl").read_text().splitlines()
    ]
    for line in lines:
        if line["kind"] == "step" and line["step"] == 4:
            line["learner/loss"] += 1e-9
    (run / "progress.jsonl").write_bytes(b"".join(encoded(line) for line in lines))
    journal = Journal(run / "journal")
    shutil.copyfile(journal.path(3), journal.path(5))
    done = ask("replay", run, 4)
    assert done.exit_code == 1
    assert "loss DIFFERS, gradient norm same, " in done.output and "journal same" in done.output


def evicted(run: Path) -> None:
    with Store(run / "buffer", map_gib=None) as store:
        config = RunConfig()
        index = Index.load(store, config.buffer)
        with store.write() as txn:
            work = UnitOfWork(txn, index, rules_of(config), time.time())
            retention.evict(work, RetentionConfig(groups=12, grace_s=0.0))
            work.finish()


def without_store(run: Path) -> None:
    shutil.rmtree(run / "buffer")


def of_another_model(run: Path) -> None:
    for state in run.glob("checkpoints/*/state.json"):
        write_json(
            state, without_checksum(json.loads(state.read_text())) | {"model_digest": "another"}
        )


def untouched(run: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("harm", "step", "message"),
    [
        (evicted, 4, "step 4: 3 of its 3 groups"),
        (without_store, 4, "no store in"),
        (of_another_model, 8, "with another model"),
        (untouched, 10, "step 10 is not in the ledger"),
    ],
)
def test_what_is_missing_is_named_in_one_line(
    run: Path, harm: Callable[[Path], None], step: int, message: str
) -> None:
    harm(run)
    done = ask("replay", run, step)
    assert done.exit_code == 2
    [line] = [line for line in done.output.splitlines() if line.startswith("r3l-learner: ")]
    assert message in line


def test_a_run_that_left_nothing_to_compare_with_is_said_so() -> None:
    metrics = {"learner/loss": 0.5, "learner/grad_norm": 2.0}
    assert Replayed(3, metrics, {}).line().endswith("nothing to compare with")
