"""A learner that is killed goes on as if it had not been: real DeepSpeed, buffer and signals."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launch.plan import free_port
from r3l.config import dump, load
from tests.learner.model import tiny_model
from tests.learner.recorded import Recording

ROOT = Path(__file__).parent.parent.parent
SETTINGS = (
    "learner.steps=9",
    "learner.lr=1e-3",
    "learner.groups_per_step=3",
    "learner.checkpoint_every=3",
    "learner.schedule=cosine",
    "learner.warmup_steps=2",
    "algorithm.group_size=4",
    "buffer.max_staleness=0",
    "env.train_tasks=64",
    "eval.tasks=0",
)
EXACT = ("learner/loss", "learner/grad_norm", "learner/lr", "learner/entropy")


class Learning:
    """A learner process, or several ranks of it, on a run folder."""

    def __init__(
        self,
        run: Path,
        endpoint: str,
        ranks: int = 1,
        *,
        resume: bool = False,
        module: str = "learner.cli",
    ) -> None:
        self.run = run
        command = [sys.executable, "-m"]
        if ranks > 1:
            command += ["deepspeed.launcher.runner", "--num_gpus", str(ranks)]
            command += ["--master_port", str(free_port()), "--no_local_rank", "--module"]
        command += [module, "train", "--config", str(run / "config.yaml")]
        command += ["--buffer", endpoint, "--weights", "tcp://127.0.0.1:0", "--run", str(run)]
        self.process = subprocess.Popen(
            command + ["--resume"] * resume,
            stdout=(run / "learner.log").open("ab"),
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def wait(self, seconds: float = 200) -> int:
        try:
            return self.process.wait(timeout=seconds)
        finally:
            self.kill()

    def wait_for_step(self, step: int) -> None:
        end = time.monotonic() + 200
        while not (steps := [line["step"] for line in steps_of(self.run)]) or steps[-1] < step:
            assert self.process.poll() is None and time.monotonic() < end, self.log()
            time.sleep(0.005)

    def ranks(self) -> list[psutil.Process]:
        found = [psutil.Process(self.process.pid)]
        found += found[0].children(recursive=True)
        return [p for p in found if "learner.cli" in p.cmdline() and not p.children()]

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def log(self) -> str:
        return (self.run / "learner.log").read_text()[-3000:]


def steps_of(run: Path) -> list[dict[str, float]]:
    path = run / "progress.jsonl"
    lines = path.read_bytes().rpartition(b"\n")[0].splitlines() if path.exists() else []
    return [line for line in map(json.loads, lines) if line["kind"] == "step"]


def prepare(run: Path, model: Path, *more: str) -> None:
    run.mkdir(parents=True)
    config = load(None, [f"model={model}", *SETTINGS, *more])
    (run / "config.yaml").write_text(dump(config))


def buffer_options() -> list[str]:
    return ["buffer.max_staleness=0", "learner.groups_per_step=3", "buffer.map_gib=0.25"]


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
