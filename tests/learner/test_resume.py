"""A killed learner continues as if it had not been killed: real DeepSpeed, buffer and signals."""

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from buffer import BufferClient
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l.records import Group
from tests.buffer.fakes import Served
from tests.learner.fakes import (
    Learning,
    Recording,
    buffer_options,
    prepare,
    recorded_group,
    rewarded,
    steps_of,
    tiny_model,
)

EXACT = ("learner/loss", "learner/grad_norm", "learner/lr", "learner/entropy")


def trained(
    serve: Callable[..., Served],
    folder: Path,
    name: str,
    model: Path,
    ranks: int,
    *more: str,
    played: Callable[[str, int], Group] = recorded_group,
    killed: bool = False,
    left: int | None = None,
) -> dict[int, dict[str, float]]:
    """The metrics by step of a run in `folder`/`name`; `more`: settings of the learner and of the
    buffer; `killed`: at a random step, continued by `left` ranks, by default as many as before."""
    run = folder / name
    prepare(run, model, *more)
    served = serve(folder / f"store-{name}", *buffer_options(), *more)
    with Recording(served.endpoint, played):
        learner = Learning(run, served.endpoint, ranks)
        if killed:
            learner.wait_for_step(random.Random(time.time()).randint(1, 8))
            time.sleep(random.random() * 0.1)
            random.choice(learner.ranks()).kill()
            assert learner.wait() != 0
            learner = Learning(run, served.endpoint, left or ranks, resume=True)
        assert learner.wait() == 0, learner.log()
    with BufferClient(served.endpoint) as client:
        groups = [group_id for step in range(1, 10) for group_id in client.ledger(step)]
    assert len(groups) == len(set(groups)) == 27
    return {line["step"]: line for line in steps_of(run)}


def killed_and_whole(
    serve, tmp_path: Path, model: Path, ranks: int, *more: str, played=recorded_group
):
    """The metrics by step of a run killed at a random step, and of the unbroken one."""
    killed, whole = (
        trained(serve, tmp_path, name, model, ranks, *more, played=played, killed=name == "killed")
        for name in ("killed", "whole")
    )
    return killed, whole


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("policy"))


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Path:
    """The folder of a run of one rank that nothing interrupts, in `whole`."""
    folder = tmp_path_factory.mktemp("unbroken")
    with ExitStack() as stack:

        def serve(store: Path, *options: str) -> Served:
            served = Served(store, "tcp://127.0.0.1:0", *options)
            stack.callback(served.kill)
            return served

        trained(serve, folder, "whole", model, 1)
    return folder / "whole"


def by_step(run: Path) -> dict[int, dict[str, float]]:
    return {int(line["step"]): line for line in steps_of(run)}


@pytest.mark.system
def test_a_killed_learner_has_the_losses_of_an_unbroken_one_and_trains_every_group_once(
    serve, tmp_path: Path, model: Path, unbroken: Path
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    killed, whole = trained(serve, tmp_path, "killed", model, 1, killed=True), by_step(unbroken)
    assert sorted(killed) == sorted(whole) == list(range(1, 10))
    for step in whole:
        assert [killed[step][n] for n in EXACT] == [whole[step][n] for n in EXACT], step
    models = [run / "model" for run in (tmp_path / "killed", unbroken)]
    for folder in models:
        AutoModelForCausalLM.from_pretrained(folder)
        assert AutoTokenizer.from_pretrained(folder).chat_template
    first, second = (folder / "model.safetensors" for folder in models)
    assert first.read_bytes() == second.read_bytes()
    kept = sorted(p.name for p in (tmp_path / "killed" / "checkpoints").iterdir())
    assert kept == ["step-000006", "step-000009"]


@pytest.mark.system
def test_after_the_kill_of_one_of_two_ranks_the_other_goes_on_alone_with_the_same_losses(
    serve, tmp_path: Path, model: Path, unbroken: Path
) -> None:
    stage, whole = "learner.zero_stage=3", by_step(unbroken)
    killed = trained(serve, tmp_path, "killed", model, 2, stage, killed=True, left=1)
    assert sorted(killed) == sorted(whole) == list(range(1, 10))
    for step in whole:
        for name in EXACT:
            assert killed[step][name] == pytest.approx(whole[step][name], rel=1e-3), (step, name)


@pytest.mark.nightly
@pytest.mark.system
def test_a_killed_learner_of_adapters_has_the_losses_of_an_unbroken_one(
    serve, tmp_path: Path, model: Path
) -> None:
    killed, whole = killed_and_whole(serve, tmp_path, model, 1, "learner.lora.rank=4")
    for step in whole:
        assert [killed[step][n] for n in EXACT] == [whole[step][n] for n in EXACT], step
    newest = tmp_path / "killed" / "checkpoints" / "step-000009"
    assert (newest / "adapter_model.safetensors").is_file()
    assert not (newest / "model.safetensors").exists()


def flat(number: int) -> bool:
    return number % 3 == 1


def some_flat(group_id: str, version: int) -> Group:
    """Recorded groups, of which every third has no contrast."""
    group = recorded_group(group_id, version)
    return rewarded(group, 1.0) if flat(int(group_id[1:])) else group


@pytest.mark.nightly
@pytest.mark.system
def test_killed_ranks_under_dapo_train_full_batches_with_contrast_and_every_group_once(
    serve, tmp_path: Path, model: Path
) -> None:
    killed, whole = killed_and_whole(serve, tmp_path, model, 2, "algorithm=dapo", played=some_flat)
    assert sorted(killed) == sorted(whole) == list(range(1, 10))
    for step in whole:
        assert [killed[step][n] for n in EXACT] == [whole[step][n] for n in EXACT], step
    for name, steps in (("killed", killed), ("whole", whole)):
        store = Store(tmp_path / f"store-{name}", read_only=True)
        assert verify(store) == []
        with store.read() as txn:
            trained = [g for step in range(1, 10) for g in txn.step(step).groups]
            closed = [row for row in txn.rows() if row.cause == "no_contrast"]
        store.close()
        assert not any(flat(int(group[1:])) for group in trained)
        assert closed and all(flat(int(row.group_id[1:])) for row in closed)
        assert steps[9]["buffer/expired_no_contrast"] >= 13
        assert 0 < steps[9]["group/no_contrast"] < 1


def some_failed(group_id: str, version: int) -> Group:
    """Recorded groups, of which every third has no success."""
    group = recorded_group(group_id, version)
    return rewarded(group, 0.0) if flat(int(group_id[1:])) else group


@pytest.mark.nightly
@pytest.mark.system
def test_killed_ranks_recall_the_same_attempts_and_have_the_same_losses(
    serve, tmp_path: Path, model: Path
) -> None:
    settings = ("algorithm.recall_count=2", "env.train_tasks=3")
    killed, whole = killed_and_whole(serve, tmp_path, model, 2, *settings, played=some_failed)
    assert sorted(killed) == sorted(whole) == list(range(1, 10))
    for step in whole:
        assert [killed[step][n] for n in EXACT] == [whole[step][n] for n in EXACT], step
    recalled = []
    for name in ("killed", "whole"):
        store = Store(tmp_path / f"store-{name}", read_only=True)
        assert verify(store) == []
        with store.read() as txn:
            recalled.append([txn.draw(step.draw_id).recalled for step in txn.steps()])
        store.close()
    assert recalled[0] == recalled[1] and sum(map(len, recalled[0])) > 4
