"""The main job with real processes: vLLM actors, the LMDB buffer, a DeepSpeed learner."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from buffer.storage.store import Store
from buffer.tools.verify import verify
from buffer.wire.curve_keys import generate
from learner.metrics.tags import check_tag
from tests.buffer.fakes import until
from tests.processes import command_line, lives
from tests.system.generate import PROMPT

pytestmark = pytest.mark.system

SMALL = (
    "learner.groups_per_step=4",
    "actor.concurrent_requests=16",
    "eval.tasks=8",
    "eval.every=0",
)


def launch(run: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "launch.cli", "--run", str(run), "--actors", "1"]
    return subprocess.Popen(
        [*command, *SMALL, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


def processes_of(run: Path) -> list[str]:
    """Command lines of living processes that belong to a run."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = " ".join(process.info["cmdline"] or [])
        if str(run) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(line)
    return found


def scalars(run: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A run of three steps, to its end, whose services others might reach and are encrypted."""
    run = tmp_path_factory.mktemp("runs") / "three"
    generate(run.parent / "keys")
    process = launch(
        run, "--steps", "3", "--keys", str(run.parent / "keys"),
        "--buffer", "tcp://0.0.0.0:*", "--weights", "tcp://0.0.0.0:*",
    )  # fmt: skip
    output, _ = process.communicate(timeout=400)
    assert process.returncode == 0, output
    return run, output


def test_a_run_ends_with_its_evaluation_line_and_leaves_no_process(
    finished_run: tuple[Path, str],
) -> None:
    run, output = finished_run
    lines = output.strip().splitlines()
    pattern = r"eval success \d\.\d\d -> \d\.\d\d \(8 tasks, 3 steps, \d+ s\)"
    assert any(re.fullmatch(pattern, line) for line in lines), output
    assert any(line.startswith("model: ") for line in lines), output
    assert any(line.startswith("next: r3l-eval --run ") for line in lines), output
    assert sum(line.startswith("step ") for line in lines) == 3
    assert processes_of(run) == []


def test_a_run_folder_holds_config_logs_metrics_checkpoint_and_a_model_that_loads(
    finished_run: tuple[Path, str],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, _ = finished_run
    assert {p.name for p in (run / "logs").iterdir()} == {
        "buffer.log",
        "keeper.log",
        "learner.log",
        "actor-0.log",
    }
    assert (run / "config.yaml").exists() and (run / "checkpoints" / "step-000003").is_dir()
    AutoModelForCausalLM.from_pretrained(run / "model")
    assert AutoTokenizer.from_pretrained(run / "model").chat_template


def test_vllm_and_transformers_load_the_best_and_the_last_model_and_agree(
    finished_run: tuple[Path, str],
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    folders = [str(finished_run[0] / name) for name in ("best", "model")]
    done = subprocess.run(
        [sys.executable, "-m", "tests.system.generate", *folders],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent.parent.parent,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    generated = [json.loads(x) for x in done.stdout.splitlines() if x.startswith('{"tokens"')]
    for folder, said in zip(folders, generated, strict=True):
        lm = AutoModelForCausalLM.from_pretrained(folder)
        tokens = torch.tensor(said["tokens"])
        with torch.no_grad():
            logits = lm(torch.cat([torch.tensor(PROMPT), tokens])[None]).logits[0]
        logprobs = logits.log_softmax(-1)[len(PROMPT) - 1 : -1].gather(1, tokens[:, None])[:, 0]
        assert logprobs.tolist() == pytest.approx(said["logprobs"], abs=1e-3)
        assert len(tokens) == 16 and said["text"]


def test_tensorboard_shows_every_promised_metric(finished_run: tuple[Path, str]) -> None:
    run, _ = finished_run
    tags = scalars(run)
    for tag in (
        "group/reward_mean",
        "group/success_base",
        "group/trigger_rate",
        "group/reflection_valid",
        "group/generated_tokens",
        "staleness/mean",
        "staleness/max",
        "staleness/queue_s",
        "buffer/complete",
        "buffer/trained",
        "actor/tokens_per_s",
        "actor/idle_share",
        "learner/loss",
        "learner/grad_norm",
        "learner/entropy",
        "learner/behaviour_kl",
        "learner/tokens_per_s",
        "learner/idle_share",
        "weights/version_lag",
        "weights/patch_bytes",
        "weights/patch_density",
        "weights/publish_s",
        "weights/fetch_s",
        "weights/pause_s",
        "eval/success",
    ):
        assert tag in tags, sorted(tags)
    for tag in tags:
        check_tag(tag)
    assert max(tags["staleness/max"]) <= 4


def test_the_learner_and_the_engine_agree_about_fresh_samples(
    finished_run: tuple[Path, str],
) -> None:
    """At step 1 nothing is stale: the learner's log-probabilities are the engine's."""
    run, _ = finished_run
    lines = map(json.loads, (run / "progress.jsonl").read_text().splitlines())
    first = next(line for line in lines if line["kind"] == "step")
    assert first["step"] == 1 and first["staleness/max"] == 0
    assert abs(first["learner/behaviour_kl"]) < 1e-2 or first["group/success_retry"] > 0


@pytest.mark.timeout(1200)
def test_ctrl_c_ends_every_process_and_the_resumed_run_outlives_its_actor_and_its_buffer(
    tmp_path: Path,
) -> None:
    run = tmp_path / "broken"
    process = launch(run, "--steps", "1000", "eval.tasks=0")
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step ") and " 2/1000" in line:
            break
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 130 and "resume" in output
    assert processes_of(run) == []
    reached = json.loads((run / "progress.jsonl").read_text().splitlines()[-1])["step"]

    last = reached + 4
    resumed = launch(run, "--resume", "--steps", str(last), "eval.tasks=0")
    assert resumed.stdout is not None
    victims = {
        f"step {reached + 1}/{last}": "actors.cli",
        f"step {reached + 2}/{last}": "buffer.cli",
    }
    said = []
    for line in resumed.stdout:
        said.append(line)
        if (module := victims.pop(line.partition("  ")[0], "")) != "":
            (victim,) = (
                p for p in psutil.process_iter(["cmdline"])
                if module in (p.info["cmdline"] or []) and str(run) in " ".join(p.info["cmdline"])
            )  # fmt: skip
            victim.kill()
    assert resumed.wait(timeout=60) == 0 and not victims, said
    again = "ended with exit code -9; restarted (1 of 3 restarts"
    assert [line.split()[0] for line in said if again in line] == ["actor-0", "buffer"]
    with contextlib.closing(Store(run / "buffer", read_only=True)) as store:
        assert verify(store) == []
    assert processes_of(run) == []
    steps = [
        json.loads(line)
        for line in (run / "progress.jsonl").read_text().splitlines()
        if '"kind": "step"' in line
    ]
    assert [line["step"] for line in steps] == list(range(1, last + 1))
    for line in steps[reached:]:  # no sample of weights that the learner did not go on from
        assert line["learner/behaviour_kl_base"] < 0.1 and line["staleness/max"] <= 4


def test_a_killed_launcher_leaves_no_process_behind(
    tmp_path: Path,
) -> None:
    launcher = launch(tmp_path / "killed", "--steps", "1000")
    started: list[psutil.Process] = []
    began = time.monotonic()
    while not any("EngineCore" in " ".join(command_line(process)) for process in started):
        assert launcher.poll() is None and time.monotonic() - began < 200
        time.sleep(0.05)
        started = psutil.Process(launcher.pid).children(recursive=True)
    launcher.kill()
    launcher.communicate()
    _, left = psutil.wait_procs(started, timeout=120)
    assert [p for p in left if lives(p)] == []


def test_two_learner_ranks_survive_the_kill_of_one_and_stop_on_ctrl_c(
    tmp_path: Path,
) -> None:
    run = tmp_path / "ranks"
    process = launch(
        run, "--learner", "2cpu", "--steps", "1000", "eval.tasks=0", "learner.checkpoint_every=1",
        "learner.zero_stage=3",
    )  # fmt: skip
    assert process.stdout is not None
    said, killed = [], False
    for line in process.stdout:
        said.append(line)
        if line.startswith("step ") and " 2/1000" in line and not killed:
            rank_of(run, 1).kill()
            killed = True  # the step is said again if its checkpoint was not whole
        if line.startswith("step ") and " 4/1000" in line:
            break
    assert listeners_of(run) == {"127.0.0.1"}
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130 and "killed" not in output, output
    assert sum("restarted from its last checkpoint (1 of 3" in line for line in said) == 1
    assert processes_of(run) == []
    assert (run / "model" / "config.json").exists()
    assert list((run / "checkpoints").glob("step-*/optimizer.safetensors"))
    assert trained_once(run)
    assert [path for path in (run, *run.rglob("*")) if path.stat().st_mode & 0o077] == []


def test_two_learner_ranks_save_their_last_step_after_their_launcher_was_killed(
    tmp_path: Path,
) -> None:
    run = tmp_path / "orphans"
    settings = ("--learner", "2cpu", "eval.tasks=0", "learner.checkpoint_every=1000")
    process = launch(run, "--steps", "1000", *settings)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("step ") and " 2/1000" in line:
            break
    process.kill()
    process.communicate()
    until(lambda: processes_of(run) == [])
    (saved,) = (int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*"))
    assert saved >= 2

    resumed = launch(run, "--resume", "--steps", str(saved + 1))
    output, _ = resumed.communicate(timeout=400)
    assert resumed.returncode == 0, output
    assert f"step {saved + 1}/{saved + 1}" in output
    assert trained_once(run) and processes_of(run) == []


def listeners_of(run: Path) -> set[str]:
    """The addresses at which the processes of a run listen."""
    own = [p for p in psutil.process_iter(["cmdline"]) if str(run) in (p.info["cmdline"] or [])]
    found: set[str] = set()
    with_children = [one for process in own for one in (process, *process.children(recursive=True))]
    for process in with_children:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            found |= {c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"}
    return found


def rank_of(run: Path, rank: int) -> psutil.Process:
    """The learner's process of a rank."""
    for process in psutil.process_iter(["cmdline"]):
        if {"learner.cli", str(run)} <= set(process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.Error):
                if process.environ().get("RANK") == str(rank):
                    return process
    raise LookupError(f"no rank {rank}")


def trained_once(run: Path) -> bool:
    """Whether the ledger has every step once and every group in one step."""
    from buffer.storage.store import Store

    store = Store(run / "buffer", map_gib=64, read_only=True)
    with store.read() as txn:
        rows = list(txn.steps())
    groups = [group for row in rows for group in row.groups]
    steps = [row.step for row in rows]
    return steps == list(range(1, len(steps) + 1)) and len(groups) == len(set(groups))


BROKEN = """
from envs import EnvSpec

class Broken:
    spec = EnvSpec("broken", "", max_steps=2)

    def reset(self, *, seed, options=None):
        if seed % 100_000_000 > 0:  # not for the tasks that are tried before the run
            raise LookupError("no such page")
        return "go", {}

    def step(self, action):
        return "on", 0.0, False, False, {}

    def close(self):
        pass
"""


def test_an_environment_that_always_raises_ends_the_run_and_is_told_once_with_its_traceback(
    tmp_path: Path,
) -> None:
    run, file = tmp_path / "run", tmp_path / "broken.py"
    file.write_text(BROKEN)
    process = launch(run, "--env", f"{file}:Broken", "eval.tasks=0", "model=builtin")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 2, output
    told = [line for line in output.splitlines() if "LookupError: no such page" in line]
    assert len(told) == 1 and told[0].startswith("actor-0: an attempt failed, counted as ")
    assert told[0].endswith(f"({file}:9); traceback in this log")
    why = output.splitlines()[-1]
    assert why.startswith("learner ended with exit code 2: the first ")
    assert " groups hold no attempt at all, every one failed: environment_LookupError (" in why
    log = (run / "logs" / "actor-0.log").read_text()
    assert log.count("Traceback (most recent call last)") == 1 and "in reset" in log
