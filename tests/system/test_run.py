"""The main job with real processes: vLLM actors, the LMDB buffer, a DeepSpeed learner."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from buffer.storage.store import Store
from buffer.tools.verify import verify
from buffer.wire.curve_keys import generate
from learner.metrics.tags import check_tag
from r3l.run.files.run_folder import RunFolder
from r3l.run.process.process_list import every_process
from tests.buffer.fakes import until
from tests.processes import command_line, lives
from tests.system.generate import PROMPT

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]
ROOT = Path(__file__).parents[2]

SMALL = (
    "learner.groups_per_step=4",
    "actor.concurrent_requests=16",
    "eval.tasks=8",
    "eval.every=0",
)


def launch(run: Path, *arguments: str, module: str = "launch.cli") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", module, "--run", str(run), "--actors", "1"]
    return subprocess.Popen(
        [*command, *SMALL, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )


def processes_of(run: Path) -> list[str]:
    """Command lines of living processes that belong to a run."""
    found = []
    for process in every_process():
        line = " ".join(command_line(process))
        if str(run) in line and lives(process):
            found.append(line)
    return found


def scalars(run: Path) -> dict[str, list[float]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run / "tensorboard"))
    events.Reload()
    return {tag: [e.value for e in events.Scalars(tag)] for tag in events.Tags()["scalars"]}


@dataclass
class Finished:
    """A run that Ctrl-C stopped after two steps, and that ended four steps after it was resumed.

    Its services, which others might reach, are encrypted. When it was resumed, its actor and its
    buffer were killed.
    """

    run: Path
    stopped: str
    exit_code: int
    left: list[str]
    reached: int
    resumed: list[str]

    @property
    def last(self) -> int:
        return self.reached + 4


def until_ready(run: Path, name: str) -> None:
    """Waits until a process has said that it is ready: one that never was is not started again.
    The first steps after a resume may be of stored groups, before an actor is there."""
    deadline = time.monotonic() + 200
    while RunFolder(run).status_of(name) is None:
        assert time.monotonic() < deadline, name
        time.sleep(0.05)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    run = tmp_path_factory.mktemp("runs") / "finished"
    generate(run.parent / "keys")
    open_to_others = ("--buffer", "tcp://0.0.0.0:*", "--weights", "tcp://0.0.0.0:*")
    given = ("--keys", str(run.parent / "keys"), *open_to_others)
    process = launch(run, *given, "--steps", "1000")
    next_step(process, [], lambda step: step == 2)
    process.send_signal(signal.SIGINT)
    stopped, _ = process.communicate(timeout=200)
    reached = json.loads((run / "progress.jsonl").read_text().splitlines()[-1])["step"]
    found = Finished(run, stopped, process.returncode, processes_of(run), reached, [])

    last = found.last
    resumed = launch(run, *given, "--resume", "--steps", str(last))
    assert resumed.stdout is not None
    victims = {reached + 1: "actors.cli", reached + 2: "buffer.cli"}
    for line in resumed.stdout:
        found.resumed.append(line.rstrip("\n"))
        if module := victims.pop(step_of(line), ""):
            (victim,) = (
                p for p in every_process()
                if module in (words := command_line(p)) and str(run) in " ".join(words)
            )  # fmt: skip
            until_ready(run, "actor-0" if module == "actors.cli" else "buffer")
            victim.kill()
    assert resumed.wait(timeout=200) == 0 and not victims, found.resumed
    return found


def test_ctrl_c_ends_every_process_and_the_resumed_run_outlives_its_actor_and_its_buffer(
    finished: Finished,
) -> None:
    run, reached = finished.run, finished.reached
    assert finished.exit_code == 130 and "resume" in finished.stopped
    assert finished.left == []
    again = "ended with exit code -9; restarted (1 of 3 restarts"
    restarted = [line.split()[0] for line in finished.resumed if again in line]
    assert sorted(restarted) == ["actor-0", "buffer"]  # the launcher may notice both at once
    with contextlib.closing(Store(run / "buffer", read_only=True)) as store:
        assert verify(store) == []
    assert processes_of(run) == []
    progress = map(json.loads, (run / "progress.jsonl").read_text().splitlines())
    steps = [line for line in progress if line["kind"] == "step"]
    assert [line["step"] for line in steps] == list(range(1, finished.last + 1))
    for line in steps[reached:]:  # no sample of weights that the learner did not go on from
        assert line["learner/behaviour_kl_base"] < 0.1 and line["staleness/max"] <= 4


def test_a_run_ends_with_its_evaluation_line(finished: Finished) -> None:
    lines = finished.resumed
    pattern = rf"eval success \d\.\d\d -> \d\.\d\d \(8 tasks, {finished.last} steps, \d+ s\)"
    pattern += "(; not a clear change .*)?"
    assert any(re.fullmatch(pattern, line) for line in lines), lines
    assert any(line.startswith("model: ") for line in lines), lines
    assert any(line.startswith("next: r3l-eval --run ") for line in lines), lines
    assert sum(line.startswith("step ") for line in lines) == 4
    assert re.match(r"bill: [\d,]+ tokens sampled, ", lines[-1]), lines
    assert "## Evaluation" in (finished.run / "model" / "README.md").read_text()


@pytest.mark.nightly  # by day: tests/learner/test_rank0.py::test_a_run_ends_after_the_step…
def test_a_budget_ends_a_run_with_a_checkpoint_and_a_larger_one_continues_it(
    tmp_path: Path,
) -> None:
    run = tmp_path / "runs" / "spent"
    process = launch(run, "--steps", "40", "budget.tokens=40000")
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0 and processes_of(run) == []
    last = said.splitlines()[-1]
    assert last.startswith("bill: ") and "budget.tokens=40000 is used up" in last
    found = re.search(r"ended at step (\d+) of 40 with a checkpoint, continue with", last)
    assert found is not None, last
    reached = int(found[1])
    assert (run / "checkpoints" / f"step-{reached:06d}").is_dir() and (run / "model").is_dir()
    refused = launch(run, "--resume")
    said, _ = refused.communicate(timeout=200)
    assert refused.returncode == 2 and "budget.tokens=40000: " in said
    used = sum(usage.tokens for usage in RunFolder(run).bill().values())
    more = launch(run, "--resume", "--steps", str(reached + 1), "budget.tokens=null")
    assert more.communicate(timeout=400) and more.returncode == 0
    assert sum(usage.tokens for usage in RunFolder(run).bill().values()) > used


def test_a_run_folder_holds_config_logs_and_checkpoint(finished: Finished) -> None:
    run = finished.run
    assert {p.name for p in (run / "logs").iterdir()} == {
        "buffer.log",
        "keeper.log",
        "learner.log",
        "actor-0.log",
    }
    assert (run / "config.yaml").exists() and (
        run / "checkpoints" / f"step-{finished.last:06d}"
    ).is_dir()


def test_transformers_load_the_best_and_the_last_model_and_vllm_agrees(
    finished: Finished,
) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    run, loaded = finished.run, {}
    for name in ("best", "model"):
        loaded[name] = AutoModelForCausalLM.from_pretrained(run / name)
        assert AutoTokenizer.from_pretrained(run / name).chat_template
    best, last = (loaded[name].state_dict() for name in ("best", "model"))
    assert {n: (t.shape, t.dtype) for n, t in best.items()} == {
        n: (t.shape, t.dtype) for n, t in last.items()
    }
    command = [sys.executable, "-m", "tests.system.generate", str(run / "model")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    (said,) = (json.loads(x) for x in done.stdout.splitlines() if x.startswith('{"tokens"'))
    tokens = torch.tensor(said["tokens"])
    with torch.no_grad():
        logits = loaded["model"](torch.cat([torch.tensor(PROMPT), tokens])[None]).logits[0]
    logprobs = logits.log_softmax(-1)[len(PROMPT) - 1 : -1].gather(1, tokens[:, None])[:, 0]
    assert logprobs.tolist() == pytest.approx(said["logprobs"], abs=1e-3)
    assert len(tokens) == 16 and said["text"]


def test_tensorboard_shows_every_promised_metric(finished: Finished) -> None:
    run = finished.run
    tags = scalars(run)
    for tag in (
        "group/reward_mean",
        "group/success_base",
        "group/trigger_rate",
        "group/reflection_valid",
        "group/generated_tokens",
        "staleness/mean",
        "staleness/max",
        "time/queue_s",
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
    finished: Finished,
) -> None:
    """At step 1 nothing is stale: the learner's log-probabilities are the engine's."""
    run = finished.run
    lines = map(json.loads, (run / "progress.jsonl").read_text().splitlines())
    first = next(line for line in lines if line["kind"] == "step")
    assert first["step"] == 1 and first["staleness/max"] == 0
    assert abs(first["learner/behaviour_kl"]) < 1e-2 or first["group/success_retry"] > 0


def test_two_learner_ranks_survive_the_kill_of_one_and_save_a_last_step_without_their_launcher(
    tmp_path: Path,
) -> None:
    run, settings = tmp_path / "ranks", ("--learner", "2cpu", "eval.tasks=0")
    process = launch(
        run, *settings, "--steps", "1000", "learner.checkpoint_every=2", "learner.zero_stage=3"
    )
    said: list[str] = []
    restarted = "restarted from its last checkpoint (1 of 3"
    next_step(process, said, lambda step: step == 3)
    rank_of(run, 1).kill()
    # A step that no checkpoint of every second step has.
    step = next_step(
        process, said, lambda step: step >= 3 and step % 2 and restarted in "".join(said)
    )
    assert sum(restarted in line for line in said) == 1
    assert listeners_of(run) == {"127.0.0.1"}
    started = psutil.Process(process.pid).children(recursive=True)
    assert any("EngineCore" in " ".join(command_line(one)) for one in started)
    process.kill()
    process.communicate()
    until(lambda: processes_of(run) == [] and not any(map(lives, started)))
    saved = max(int(path.name.removeprefix("step-")) for path in run.glob("checkpoints/step-*"))
    assert saved >= step

    resumed = launch(run, "--resume", *settings, "--steps", "1000")
    assert next_step(resumed, said, lambda step: True) == saved + 1
    resumed.send_signal(signal.SIGINT)
    output, _ = resumed.communicate(timeout=200)
    assert resumed.returncode == 130 and "killed" not in output, output
    assert processes_of(run) == []
    assert (run / "model" / "config.json").exists()
    assert list((run / "checkpoints").glob("step-*/optimizer.safetensors"))
    assert trained_once(run)
    assert [path for path in (run, *run.rglob("*")) if path.stat().st_mode & 0o077] == []


def next_step(
    process: subprocess.Popen[str], said: list[str], wanted: Callable[[int], object]
) -> int:
    """The next wanted step that a launcher reports; its lines are added to `said`."""
    assert process.stdout is not None
    for line in process.stdout:
        said.append(line)
        if (step := step_of(line)) and wanted(step):
            return step
    raise AssertionError("".join(said[-50:]))


def step_of(line: str) -> int:
    """The step that a line reports; 0 if it reports none."""
    found = re.match(r"step +(\d+)/", line)
    return int(found[1]) if found else 0


def listeners_of(run: Path) -> set[str]:
    """The addresses at which the processes of a run listen."""
    own = [p for p in every_process() if str(run) in command_line(p)]
    found: set[str] = set()
    with_children = [one for process in own for one in (process, *process.children(recursive=True))]
    for process in with_children:
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended
            found |= {c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"}
    return found


def rank_of(run: Path, rank: int) -> psutil.Process:
    """The learner's process of a rank."""
    for process in every_process():
        if {"learner.cli", str(run)} <= set(command_line(process)):
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
    settings = ("--env", f"{file}:Broken", "eval.tasks=0", "model=builtin")
    process = launch(run, *settings, module="tests.system.simulated_launch")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 2, output
    told = [line for line in output.splitlines() if "LookupError: no such page" in line]
    assert len(told) == 1 and told[0].startswith("actor-0: ")
    assert " counted as environment_LookupE" in told[0] and f"({file}:9); traceback" in told[0]
    why = output.splitlines()[-1]
    assert why.startswith("learner ended with exit code 2: ")
    assert "hold no attempt" in why and ": environment_LookupE" in why
    log = (run / "logs" / "actor-0.log").read_text()
    assert log.count("Traceback (most recent call last)") == 1 and "in reset" in log
