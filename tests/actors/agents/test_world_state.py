"""A retry begins in the world of its base attempt, or without it, but never in another one."""

import asyncio
import json
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.agents.world_state import MOST_ATTEMPTS, MOST_BYTES, Snapshots
from envs.agents.agent_runner import ProcessState
from r3l.records import SlotResult
from r3l.rollout.exploration import Exploration
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import RunConfig
from tests.actors.agents import test_agent_attempt, test_tape_reader
from tests.actors.agents.test_tape_reader import ADVICE, answers, attempts, explored
from tests.r3l.fakes import ScriptedPolicy

WALK = """
        with open("log.txt", "a") as log:
            print(attempt, end="", file=log)
        if task["mood"] == "other" and attempt:
            open("other.txt", "w").close()
        if task["mood"] == "killed " + str(attempt) and step == 3:
            os.kill(os.getpid(), 9)
        if task["mood"] == "ends" and attempt and step == 3:
            raise SystemExit(3)
        if task["mood"] == "own":
            walked or os.mkdir(own := str(time.time_ns()))
            open(own + "/note", "w").close()
"""
END = 'return {{"reward": 0.0, "feedback": open("log.txt").read()}}\n'
AGENT = (
    test_tape_reader.AGENT.replace(
        "        reply = ask(messages)\n", WALK + "        reply = ask(messages)\n"
    ).split("    return {{")[0]
    + f"    {END}"
)


def config_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str, **own: str) -> RunConfig:
    monkeypatch.setattr(test_tape_reader, "AGENT", AGENT)
    config = test_tape_reader.config_of(folder, own.pop("mood", ""), 4, *more)
    options = config.env.options | {"snapshot": "workspace"} | own
    return config.model_copy(update={"env": config.env.model_copy(update={"options": options})})


def played(
    config: RunConfig, times: int = 1
) -> tuple[list[list[SlotResult]], ActorMetrics, list[str]]:
    return explored(config, ScriptedPolicy(answers(2)), times)


def feedback(results: list[SlotResult]) -> list[str]:
    return [attempt.feedback for attempt in attempts(results)]


def test_a_retry_finds_the_folder_of_its_base_attempt_at_its_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Attempt 1 wrote 111 before the call of step 2; attempt 0 had written 000."""
    (results,), metrics, _ = played(config_of(tmp_path, monkeypatch, snapshot=""))
    assert feedback(results) == ["0000", "0001"]
    assert metrics.agent["restored"] == 1 and metrics.agent["snapshot_failed"] == 0
    (results,), *_ = played(config_of(tmp_path, monkeypatch, snapshot="none"))
    assert feedback(results)[1] == "3333"
    (results,), *_ = played(config_of(tmp_path, monkeypatch, mood="other"))
    assert feedback(results)[1] == "4445"


def test_a_saved_world_serves_one_retry_and_the_others_run_their_tools_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their own log has the number of each: 2222 and 3333."""

    async def explore(x: Exploration) -> None:
        await x.play(0, retried=True)
        await x.retry(1, of=0, pivot=2, guidance=ADVICE)
        await x.retry(2, of=0, pivot=2, guidance=ADVICE)
        await x.retry(3, of=1, pivot=3, guidance=ADVICE)

    config = config_of(tmp_path, monkeypatch)
    (results,), metrics, failures = explored(
        config, ScriptedPolicy(answers(2)), explore=explore, slots=4
    )
    made = [result.trajectory for result in results]
    assert [t and t.feedback for t in made] == ["0000", "0001", "2222", "3333"], failures
    assert [t and (t.of, t.pivot) for t in made] == [(-1, -1), (0, 2), (0, 2), (1, 3)]
    assert metrics.agent["restored"] == 1 and metrics.agent["diverged"] == 0


def test_an_agent_that_the_copy_breaks_is_retried_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of a name of its own that the retry uses is not one of the base attempt."""
    config = config_of(tmp_path, monkeypatch, "actor.agent.max_divergences=2", mood="own")
    groups, metrics, failures = played(config, times=3)
    counts = [metrics.agent[name] for name in ("restored", "restore_failed", "snapshot_failed")]
    assert counts == [2, 2, 0] and not failures
    assert [attempts(results)[1].pivot for results in groups] == [2, 2, 2]


def test_an_agent_that_ends_with_an_error_anyway_was_not_broken_by_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ((_, retry),), metrics, _ = played(config_of(tmp_path, monkeypatch, mood="ends"))
    assert retry.cause == "agent_exit" and metrics.agent["attempts"] == 3
    assert metrics.agent["restored"] == 1 and metrics.agent["restore_failed"] == 0


def program(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    return f"{sys.executable} {folder / name}.py"


@pytest.mark.parametrize(
    ("snapshot", "restore", "count", "said"),
    [
        ("raise SystemExit(3)", "", "snapshot_failed", "ended with exit code 3"),
        ("import time; time.sleep(60)", "", "snapshot_failed", "took too long"),
        ("print(1)", "raise SystemExit(3)", "restore_failed", "ended with exit code 3"),
        ("print(1)", "import time; time.sleep(60)", "restore_failed", "took too long"),
        ("print(1)", "print(2)", "restore_failed", "restore printed '2', but snapshot printed '1'"),
        ("", "open('left.txt', 'w')", "restore_failed", "left.txt is in the folder, but not in"),
    ],
)
def test_a_state_that_cannot_be_kept_or_put_back_is_counted_and_not_used(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: str,
    restore: str,
    count: str,
    said: str,
) -> None:
    own = {
        "snapshot": program(tmp_path, "snapshot", snapshot),
        "restore": program(tmp_path, "restore", restore),
    }
    limits = ("actor.agent.state_s=3", "actor.agent.max_divergences=2")
    config = config_of(tmp_path, monkeypatch, *limits, **own)
    groups, metrics, failures = played(config, times=3)
    assert metrics.agent[count] == 2 and metrics.agent["restored"] == 0 and not failures
    for results in groups:  # the retry's own folder, from its tools
        _, retry = attempts(results)
        assert retry.pivot == 2 and retry.actions == ("left", "left", "right", "right")
        assert len(set(retry.feedback)) == 1 and len(retry.feedback) == 4
    (line,) = [line for line in capsys.readouterr().err.splitlines() if "from now on" in line]
    assert said in line


@pytest.mark.parametrize(("killed", "restored"), [(1, 1), (2, 0)])
def test_a_retry_may_be_killed_and_find_no_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: int, restored: int
) -> None:
    """Its first start is killed, and the second one finds no state; or the other way round."""
    runs = tmp_path / "runs"
    restore = (
        f"open({str(runs)!r}, 'a').write('x')\n"
        f"raise SystemExit(3 * (len(open({str(runs)!r}).read()) > {restored}))"
    )
    own = {
        "snapshot": program(tmp_path, "snapshot", "print(1)"),
        "restore": program(tmp_path, "restore", f"print(1)\n{restore}"),
    }
    (results,), metrics, failures = played(
        config_of(tmp_path, monkeypatch, mood=f"killed {killed}", **own)
    )
    _, retry = attempts(results)
    assert retry.feedback == "3333" and retry.actions[2:] == ("right", "right") and not failures
    counts = [metrics.agent[name] for name in ("killed", "restore_failed", "restored")]
    assert counts == [1, 1, restored]


def test_an_attempt_that_is_not_retried_is_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    own = program(tmp_path, "snapshot", f"open({str(mark)!r}, 'w')")
    policy = ScriptedPolicy(answers(2))
    config = config_of(tmp_path, monkeypatch, snapshot=own, restore=own)
    test_agent_attempt.play(config, policy)
    assert policy.prompts and not mark.exists()
    explored(config, policy)
    assert mark.exists()


def test_the_disk_that_worlds_take_is_limited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (results,), *_ = played(config_of(tmp_path, monkeypatch))
    base, _ = attempts(results)

    async def run(*command: Any) -> Any:
        return ProcessState(exit=0, stdout=json.dumps({"bytes": MOST_BYTES // 2})), True

    async def test() -> None:
        snapshots = Snapshots(3, counts := Counter[str]())
        ended, *others = (snapshots.new(run) for _ in range(4))
        assert ended is not None
        await ended.save(0)
        await snapshots.keep(ended, base)
        for number, world in enumerate(others):
            assert world is not None and world.folder.exists()
            await world.save(0)
            assert not ended.folder.exists() or number == 0
            assert world.folder.exists() == bool(world.saved) == (number < 2)
        assert counts["snapshot_failed"] == 1
        snapshots.close()

    asyncio.run(test())


def test_a_world_is_removed_after_the_save_under_way() -> None:
    async def test() -> None:
        saved = asyncio.Event()

        async def run(operation: str, folder: str, call: int) -> Any:
            await saved.wait()
            Path(folder, "late").touch()
            return ProcessState(exit=0, stdout='{"bytes": 1}'), True

        snapshots = Snapshots(3, Counter())
        world = snapshots.new(run)
        assert world is not None
        saves = [asyncio.create_task(world.save(call)) for call in range(2)]
        await asyncio.sleep(0)
        removing = asyncio.create_task(world.remove())
        await asyncio.sleep(0.05)
        assert world.folder.exists() and not removing.done()
        saved.set()
        await asyncio.gather(removing, *saves)
        assert not world.folder.exists() and world.saved == {0} and snapshots.bytes == 0
        snapshots.close()

    asyncio.run(test())


def test_what_a_killed_actor_left_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    living = Snapshots(3, Counter())
    left = tmp_path / "r3l-snapshots-left"
    (left / "world").mkdir(parents=True)
    for folder in (left, living.root):
        os.utime(folder, (0, 0))
    other = Snapshots(3, Counter())
    assert not left.exists() and living.root.exists()
    living.close()
    other.close()


def test_the_worlds_of_attempts_are_removed_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, monkeypatch)
    (results,), *_ = played(config)
    base, _ = attempts(results)

    async def test() -> None:
        snapshots = Snapshots(3, ActorMetrics().agent)
        folder = snapshots.root
        for number in range(MOST_ATTEMPTS + 2):
            world: Any = snapshots.new(None)  # type: ignore[arg-type]
            extra = base.extra.__class__(tape=json.dumps(number).encode())
            await snapshots.keep(world, replace(base, extra=extra))
        assert len(list(folder.iterdir())) == MOST_ATTEMPTS
        snapshots.close()
        assert not folder.exists()

    asyncio.run(test())
