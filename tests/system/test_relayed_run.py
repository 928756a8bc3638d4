"""A run whose two actors get their weights through one relay, which is killed."""

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.weights.relay import SOCKET
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l.models.model_path import builtin_policy
from r3l.run.process.process_list import every_process
from tests.system.test_run import launch, processes_of, trained_once

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1200)]

STEPS = 6
SETTINGS = (
    f"env={Path(__file__).parent / 'coin.py'}:Coin", f"model={builtin_policy()}",
    "actor.weights.transport=relay", "algorithm.group_size=4", f"learner.steps={STEPS}",
    "learner.groups_per_step=16", "learner.dtype=float32", "learner.tokens_per_micro_batch=1024",
    "actor.concurrent_requests=8", "actor.max_model_len=2048",
    "actor.max_reflection_tokens=256", "eval.tasks=0", "buffer.map_gib=1",
)  # fmt: skip


def steps(run: Path) -> list[dict[str, Any]]:
    file = run / "progress.jsonl"
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [line for line in lines if line["kind"] == "step"]


def relay(folder: Path) -> psutil.Process | None:
    """The process that listens on the relay's socket below `folder`."""
    for process in every_process():
        with contextlib.suppress(psutil.Error):
            for link in process.net_connections("unix"):
                at = Path(str(link.laddr))
                if at.name == SOCKET and at.is_relative_to(folder):
                    return process
    return None


def test_a_machine_fetches_each_version_once_and_another_actor_relays_after_a_kill(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, temporary = tmp_path / "run", tmp_path / "t"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    process = launch(run, "--actors", "2", *SETTINGS, module="tests.system.simulated_launch")
    killed = None
    while process.poll() is None and killed is None:
        if len(steps(run)) >= 2 and (killed := relay(temporary)):
            killed.kill()
        time.sleep(0.2)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0 and killed is not None, output
    assert "ended with exit code -9; restarted" in output and processes_of(run) == []
    logs = [(run / "logs" / f"actor-{index}.log").read_text() for index in range(2)]
    [stayed] = [log for log in logs if log.count("simulated on") == 1]
    loaded = [int(version) for version in re.findall(r"^loaded (\d+)", stayed, re.M)]
    assert loaded == sorted(set(loaded)) and loaded[-1] >= STEPS - 1
    second = steps(run)[1]
    whole = second["weights/full_bytes"]
    assert second["weights/updates"] * whole > second["weights/received_full_bytes"]
    with contextlib.closing(Store(run / "buffer", map_gib=1, read_only=True)) as store:
        assert verify(store) == []
    assert trained_once(run)
