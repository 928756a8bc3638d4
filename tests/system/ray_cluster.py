"""A Ray cluster of four nodes on this machine, a run on it, and the loss of two nodes.

    python -m tests.system.ray_cluster RUN

Needs Ray: pip install 'r3l[ray]'. Ray's processes, the buffer, two ranks of the learner and two
actors are real; the engines of the actors guess. The node of an actor is killed, then that of rank
1. What it starts ends with it.
"""

import os
import re
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ray.cluster_utils import Cluster

from launch.backends import ray_cluster, ray_placement
from launch.backends.processes import Command
from launch.checks.plan_options import PlanOptions
from launch.preparation import prepare, write_run_folder
from launch.supervisor import Run
from r3l.models.model_path import builtin_policy
from r3l.run.config import load
from tests.launch.fakes import until
from tests.system.test_run import processes_of, trained_once

STEPS = 16  # so many that Ray notices a lost node, some 20 s later, before the run's end
NODE = {"num_cpus": 3, "object_store_memory": 100_000_000, "include_dashboard": False}
SETTINGS = (
    f"env={Path(__file__).parent / 'coin.py'}:Coin", f"model={builtin_policy()}",
    "algorithm.group_size=4", f"learner.steps={STEPS}", "learner.groups_per_step=16",
    "learner.dtype=float32", "learner.tokens_per_micro_batch=1024", "learner.zero_stage=1",
    "learner.checkpoint_every=1", "actor.concurrent_requests=8", "actor.max_model_len=2048",
    "actor.max_reflection_tokens=256", "eval.tasks=0", "buffer.map_gib=1",
)  # fmt: skip


class Simulated(ray_placement.RayCommands):
    """The commands of the plan, with engines that guess."""

    def actor(self, index: int) -> Command:
        module, actor = {"actors.cli": "tests.system.simulated_actor"}, super().actor(index)
        words = [module.get(word, word) for word in actor.words]
        return replace(actor, words=words, env=actor.env | {"CUDA_VISIBLE_DEVICES": ""})


def launch(run: Path) -> int:
    """What r3l-launch --cluster ray does."""
    plan = prepare(load(None, SETTINGS), PlanOptions(run, 2, "2x1cpu", cluster="ray"))
    ray = ray_cluster.Ray()
    print(ray.preview(plan), flush=True)
    reserved = ray.reserve(plan)
    with write_run_folder(plan):
        say = lambda line: print(line, flush=True)  # noqa: E731
        return Run(plan, say, Simulated(plan), reserved).execute()


def nodes_of(run: Path, name: str) -> list[str]:
    """The beginnings of the ids of the nodes on which a process was started, in their order."""
    log = run / "logs" / f"{name}.log"
    lines = log.read_text(errors="replace") if log.exists() else ""
    return re.findall(rf"^{name} on node \S+ \((\w+)\)", lines, re.M)


def steps(run: Path) -> int:
    """Steps that the run has reported, with those that it repeated."""
    file = run / "progress.jsonl"
    return len(re.findall('"kind": ?"step"', file.read_text())) if file.exists() else 0


def lose(cluster: Cluster, run: Path, name: str, launcher: subprocess.Popen[bytes]) -> None:
    """Kill the node of a process, and wait until the process is on another one."""
    begins = nodes_of(run, name)[-1]
    node = next(n for n in cluster.list_all_nodes() if n.node_id.startswith(begins))
    killed = time.monotonic()
    cluster.remove_node(node, allow_graceful=False)
    print(f"--- killed the node of {name}: {begins}", flush=True)
    until(lambda: nodes_of(run, name)[-1] != begins or launcher.poll() is not None, 300)
    took = time.monotonic() - killed
    assert nodes_of(run, name)[-1] != begins, f"the run ended before {name} was moved"
    print(f"--- {name} is on {nodes_of(run, name)[-1]} after {took:.0f} s", flush=True)


def play(cluster: Cluster, run: Path) -> int:
    """Run to the end, with two losses; returns the exit code of the launcher."""
    command = [sys.executable, "-m", "tests.system.ray_cluster", "launch", str(run)]
    with subprocess.Popen(command) as launcher:
        try:
            for after, name in ((2, "actor-0"), (4, "learner-1")):
                until(lambda after=after: steps(run) >= after or launcher.poll() is not None, 600)
                lose(cluster, run, name, launcher)
            return launcher.wait(600)
        finally:
            launcher.terminate()


def main(run: Path) -> None:
    os.environ |= {"RAY_worker_niceness": "0"}  # otherwise 15, which a busy machine starves
    with tempfile.TemporaryDirectory(prefix="r3l-ray-", dir="/tmp") as folder:
        # Ray 2.60 writes a file there and fails on a machine on which it never ran.
        (Path(tempfile.gettempdir()) / "ray").mkdir(exist_ok=True)
        cluster = Cluster(True, head_node_args={**NODE, "num_cpus": 1, "temp_dir": folder})
        try:
            for _ in range(3):
                cluster.add_node(**NODE)
            code = play(cluster, run)
        finally:
            cluster.shutdown()
    left = [line for line in processes_of(run) if "tests.system.ray_cluster" not in line]
    print(f"--- exit code {code}, {steps(run)} steps reported, left: {left}", flush=True)
    assert code == 0 and trained_once(run) and left == []


if __name__ == "__main__":
    if sys.argv[1] == "launch":
        sys.exit(launch(Path(sys.argv[2])))
    main(Path(sys.argv[1]).resolve())
