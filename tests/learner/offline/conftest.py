"""A run that ended: real DeepSpeed, a real buffer, recorded actors, and a journal; and a finished
store that the tokenizer of a small model filled."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from r3l.models.model_folder import read_tokenizer
from r3l.records import Group, GroupPlan, SlotResult, Task
from tests.buffer.fakes import Desk, Served
from tests.learner.fakes import (
    PLAN,
    Learning,
    Recording,
    buffer_options,
    prepare,
    recorded_group,
    rewarded,
    tiny_model,
)

Played = Callable[[str, int], Group]
KEPT = ("learner.journal_versions=99", "learner.keep_checkpoints=9", "learner.anchor_every=4")


def bases(group_id: str, version: int) -> Group:
    """The base attempts of a recorded group."""
    group = recorded_group(group_id, version)
    return replace(group, results=group.results[:2], reflections=())


def alike(group_id: str, version: int) -> Group:
    """The base attempts of a recorded group, which all fail, or all succeed in each other group."""
    return rewarded(bases(group_id, version), float(int(group_id[1:]) % 2))


def ended_run(
    folder: Path, *settings: str, played: Played = recorded_group, hidden: int = 64
) -> Path:
    """The folder of a run that has ended. The learner computed with two threads."""
    run, model = folder / "run", tiny_model(folder / "policy", hidden)
    prepare(run, model, *KEPT, *settings)
    served = Served(run / "buffer", "tcp://127.0.0.1:0", *buffer_options(), *settings)
    try:
        plan = PLAN if played is recorded_group else GroupPlan(2)
        with Recording(served.endpoint, played, plan=plan):
            learner = Learning(run, served.endpoint, threads=2)
            assert learner.wait() == 0, learner.log()
    finally:
        served.kill()
    return run


@pytest.fixture(scope="session")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of nine steps, with checkpoints at 3, 6 and 9. Its matrices are large
    enough for several threads."""
    return ended_run(tmp_path_factory.mktemp("ended"), hidden=128)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("policy"))


def worded(result: SlotResult, tokenizer: Any) -> SlotResult:
    """A result whose actions are what its tokens say."""
    one = result.trajectory
    if one is None:
        return result
    actions = tuple(
        tokenizer.decode(one.token_ids[start:end].tolist(), skip_special_tokens=True)
        for start, end in one.step_spans
    )
    return replace(result, trajectory=replace(one, actions=actions))


@pytest.fixture(scope="module")
def store(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve groups of one task, of which every third has no success."""
    tokenizer = read_tokenizer(model, "model")
    desk = Desk(tmp_path_factory.mktemp("stored") / "buffer", max_staleness=99)
    desk.add([Task("t/0", "workshop", 0)])
    vocabulary = min(len(tokenizer), 40)
    for step in range(12):
        lease = desk.lease(version=0, plan=PLAN)
        group = recorded_group(lease.group_id, 0, vocab=vocabulary)
        group = rewarded(group, 0.0) if step % 3 == 0 else group
        results = [worded(result, tokenizer) for result in group.results]
        desk.put(lease.group_id, [*results, *group.reflections])
    desk.store.close()
    return desk.folder
