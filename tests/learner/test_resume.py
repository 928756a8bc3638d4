"""A learner that is killed goes on as if it had not been: real DeepSpeed, buffer and signals."""

import random
import time
from pathlib import Path

import pytest

from buffer import BufferClient
from tests.learner.fakes import Learning, Recording, buffer_options, prepare, steps_of, tiny_model

EXACT = ("learner/loss", "learner/grad_norm", "learner/lr", "learner/entropy")


def killed_and_whole(serve, tmp_path: Path, model: Path, ranks: int, *more: str):
    """The metrics by step of a run killed at a random step, and of the unbroken one."""
    runs = {}
    for name in ("whole", "killed"):
        run = tmp_path / name
        prepare(run, model, *more)
        served = serve(tmp_path / f"store-{name}", *buffer_options())
        with Recording(served.endpoint):
            learner = Learning(run, served.endpoint, ranks)
            if name == "killed":
                learner.wait_for_step(random.Random(time.time()).randint(1, 8))
                time.sleep(random.random() * 0.1)
                random.choice(learner.ranks()).kill()
                assert learner.wait() != 0
                learner = Learning(run, served.endpoint, ranks, resume=True)
            assert learner.wait() == 0, learner.log()
        with BufferClient(served.endpoint) as client:
            trained = [group_id for step in range(1, 10) for group_id in client.ledger(step)]
        assert len(trained) == len(set(trained)) == 27
        runs[name] = {line["step"]: line for line in steps_of(run)}
    return runs["killed"], runs["whole"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("policy"))


@pytest.mark.system
def test_a_killed_learner_has_the_losses_of_an_unbroken_one_and_trains_every_group_once(
    serve, tmp_path: Path, model: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    killed, whole = killed_and_whole(serve, tmp_path, model, ranks=1)
    assert sorted(killed) == sorted(whole) == list(range(1, 10))
    for step in whole:
        assert [killed[step][n] for n in EXACT] == [whole[step][n] for n in EXACT], step
    for folder in (tmp_path / "killed" / "model", tmp_path / "whole" / "model"):
        AutoModelForCausalLM.from_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder).chat_template
    first, second = (tmp_path / n / "model" / "model.safetensors" for n in ("killed", "whole"))
    assert first.read_bytes() == second.read_bytes()
    kept = sorted(p.name for p in (tmp_path / "killed" / "checkpoints").iterdir())
    assert kept == ["step-000006", "step-000009"]
