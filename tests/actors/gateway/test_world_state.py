"""A retry begins in the world of its base attempt, or without it, but never in another one."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from actors.gateway.world_state import MOST_ATTEMPTS, Snapshots
from r3l.actor_metrics import ActorMetrics
from r3l.config import RunConfig
from r3l.records import SlotResult
from tests.actors.gateway import test_tape_player
from tests.actors.gateway.test_tape_player import answers, attempts, explored
from tests.r3l.fakes import ScriptedPolicy

WALK = """
        with open("log.txt", "a") as log:
            print(attempt, end="", file=log)
        if task["mood"] == "other" and attempt:
            open("other.txt", "w").close()
"""
END = 'return {{"reward": 0.0, "feedback": open("log.txt").read()}}\n'
AGENT = (
    test_tape_player.AGENT.replace(
        "        reply = ask(messages)\n", WALK + "        reply = ask(messages)\n"
    ).split("    return {{")[0]
    + f"    {END}"
)


def config_of(folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str, **own: str) -> RunConfig:
    monkeypatch.setattr(test_tape_player, "AGENT", AGENT)
    config = test_tape_player.config_of(folder, own.pop("mood", ""), 4, *more)
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
    (results,), metrics, _ = played(config_of(tmp_path, monkeypatch))
    assert feedback(results) == ["0000", "0001"]
    assert metrics.agent["restored"] == 1 and metrics.agent["snapshot_failed"] == 0
    (results,), *_ = played(config_of(tmp_path, monkeypatch, snapshot=""))
    assert feedback(results)[1] == "3333"
    (results,), *_ = played(config_of(tmp_path, monkeypatch, mood="other"))
    assert feedback(results)[1] == "4445"


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
        ("print(1)", "print(2)", "restore_failed", "restore printed '2', but snapshot '1'"),
        ("", "open('left.txt', 'w')", "restore_failed", "left.txt is in the folder, but was not"),
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


def test_the_worlds_of_attempts_are_removed_the_oldest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, monkeypatch)
    (results,), *_ = played(config)
    base, _ = attempts(results)

    async def test() -> None:
        snapshots = Snapshots(3, ActorMetrics().agent)
        folder = Path(snapshots.root.name)
        for number in range(MOST_ATTEMPTS + 2):
            world: Any = snapshots.new(None)  # type: ignore[arg-type]
            extra = base.extra.__class__(tape=json.dumps(number).encode())
            await snapshots.keep(world, replace(base, extra=extra))
        assert len(list(folder.iterdir())) == MOST_ATTEMPTS
        snapshots.close()
        assert not folder.exists()

    asyncio.run(test())
