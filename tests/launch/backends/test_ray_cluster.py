"""Processes that runners start, with a stand-in for Ray that plays every call at once."""

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launch.backends import ray_cluster
from launch.backends.processes import Command
from launch.backends.ray_cluster import RankGroup, RayChildren, Runner
from launch.backends.ray_placement import Bundle
from r3l.errors import UserError
from tests.launch.fakes import plan_for, said, topology, until


class RayError(Exception):
    actor_init_failed = False


class FakeActor:
    """A runner in this process. `waits`: it has no node, so no call returns."""

    def __init__(self, runner: Runner | None, waits: bool = False) -> None:
        self.runner, self.waits = runner, waits
        self.gone: RayError | None = None

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(name, arguments))

    def _call(self, name: str, arguments: tuple[Any, ...]) -> Callable[[], Any] | None:
        if self.waits:
            return None
        if self.gone:
            return self._fail
        reply = getattr(self.runner, name)(*arguments)
        return self._fail if self.gone else lambda: reply

    def _fail(self) -> Any:
        raise self.gone or RayError()


class Cluster:
    """Ray, as much of it as is used, and its actors in the order of their start."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.actors: list[FakeActor] = []
        self.waits = False
        runner = SimpleNamespace(get_node_id=lambda: "0123456789")
        fake = SimpleNamespace(
            util=SimpleNamespace(get_node_ip_address=lambda: "10.0.0.7"),
            get_runtime_context=lambda: runner,
            wait=lambda refs, timeout: (refs if refs[0] else [], []),
            get=lambda ref: ref(),
            kill=lambda actor: None,
            shutdown=lambda: None,
            exceptions=SimpleNamespace(RayError=RayError),
        )
        monkeypatch.setitem(sys.modules, "ray", fake)
        monkeypatch.setattr(ray_cluster, "set_file_modes", lambda: None)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
        self.folder = str(tmp_path)

    def make(self, at: int, bundle: Bundle) -> FakeActor:
        logs = str(Path(self.folder, "logs"))
        runner = None if self.waits else Runner(self.folder, logs, sys.executable, 60.0)
        self.actors.append(FakeActor(runner, self.waits))
        return self.actors[-1]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


def children_for(cluster: Cluster, actors: int, learner: str = "1cpu", gpus: int = 0) -> Any:
    given = topology(actors, learner, gpus=gpus)
    plan = plan_for(Path(cluster.folder), actors=actors, topology=given)
    return RayChildren(plan, cluster.make)


def python(code: str, **env: str) -> Command:
    return Command([sys.executable, "-c", code], env)


SLEEP = python("import time; time.sleep(600)")


def test_a_process_is_started_says_its_node_and_ends_when_asked(cluster: Cluster) -> None:
    children = children_for(cluster, 1)
    ready = "import time; print('ready', flush=True); time.sleep(600)"
    child = children.start("actor-0", python(ready))
    until(lambda: said(child, "ready") is not None)
    assert child.exit_code is None and not child.stopped and [*children.members.values()] == [child]
    assert "actor-0 on node 10.0.0.7 (01234567), GPUs: none" in child.log.read_text()
    assert children.stop() == [] and child.exit_code == -signal.SIGTERM


def test_a_process_sees_the_gpus_that_ray_reserved_for_it(cluster: Cluster) -> None:
    children = children_for(cluster, 1, "1gpu", gpus=3)
    env = {"CUDA_VISIBLE_DEVICES": "2"}
    show = "import os; print('sees', os.environ['CUDA_VISIBLE_DEVICES'])"
    child = children.start("actor-0", python(show, **env))
    until(lambda: child.exit_code == 0)
    assert said(child, "sees") == "4", "the first of its bundle, not the third of the machine"


def test_every_rank_is_told_its_number_and_all_end_as_one(cluster: Cluster) -> None:
    children = children_for(cluster, 1, "2cpu")
    show = "import os; print('rank', os.environ['RANK'], os.environ['LOCAL_RANK'])"
    child = children.start("learner", python(show))
    until(lambda: child.exit_code is not None)
    logs = [Path(cluster.folder, "logs", name).read_text() for name in
            ("learner.log", "learner-1.log")]  # fmt: skip
    assert child.exit_code == 0 and "rank 0 0" in logs[0] and "rank 1 1" in logs[1]
    assert [*children.members.values()] == [child]


def test_a_rank_that_fails_ends_the_others_and_gives_the_reason(cluster: Cluster) -> None:
    children = children_for(cluster, 1, "2cpu")
    fails = (
        "import os, sys, time; os.environ['RANK'] == '0' and time.sleep(600);"
        "print('r3l-learner: it broke'); sys.exit(3)"
    )
    child = children.start("learner", python(fails))
    assert isinstance(child, RankGroup)
    until(lambda: child.exit_code is not None)
    assert child.exit_code == 3 and child.reason() == "it broke"
    assert child.ranks[0].exit_code == -signal.SIGKILL


def test_when_a_node_is_lost_its_processes_are_started_on_another(cluster: Cluster) -> None:
    children = children_for(cluster, 1)
    child = children.start("actor-0", SLEEP)
    assert child.exit_code is None
    cluster.actors[0].gone = RayError("The actor died unexpectedly.")
    until(lambda: child.exit_code is not None)
    assert child.exit_code == -signal.SIGKILL and "its node" in child.reason()
    again = children.start("actor-0", python("print('again')"))
    until(lambda: again.exit_code == 0)
    assert len(cluster.actors) == 2 and [*children.members.values()] == [again]
    assert said(again, "again") is not None
    cluster.actors[0].gone = None
    cluster.actors[0].kill.remote("actor-0")


def test_a_runner_sent_to_a_node_that_is_lost_already_is_sent_again(cluster: Cluster) -> None:
    cluster.waits = True
    children = children_for(cluster, 1)
    child = children.start("actor-0", python("pass"))
    assert child.exit_code is None
    cluster.waits = False
    cluster.actors[0].gone, cluster.actors[0].waits = RayError("The actor never ran."), False
    children.runners[1]._reply = cluster.actors[0]._fail
    until(lambda: child.exit_code == 0)
    assert len(cluster.actors) == 2


def test_a_process_without_a_node_can_be_ended(cluster: Cluster) -> None:
    cluster.waits = True
    children = children_for(cluster, 1)
    child = children.start("actor-0", SLEEP)
    assert child.exit_code is None
    assert children.stop() == [] and child.exit_code == -signal.SIGKILL


def test_a_node_without_the_folder_is_named(cluster: Cluster) -> None:
    with pytest.raises(FileNotFoundError, match=r"/no/such .*10\.0\.0\.7"):
        Runner(cluster.folder, "/no/such", sys.executable, 60.0)
    text = "ray::Runner()\nFileNotFoundError: /no/such is missing on node 10.0.0.7"
    assert ray_cluster._reason(text) == "/no/such is missing on node 10.0.0.7"


def test_the_buffer_runs_here(cluster: Cluster) -> None:
    children = children_for(cluster, 1)
    child = children.start("buffer", SLEEP)
    assert child.process.poll() is None and not cluster.actors
    children.stop()


def test_a_cluster_without_room_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    group = SimpleNamespace(wait=lambda seconds: False)
    fake = SimpleNamespace(available_resources=lambda: {"CPU": 1.0})
    monkeypatch.setattr(ray_cluster, "connect", lambda: fake)
    for name, part in (
        ("ray.util.placement_group", {"placement_group": lambda *_, **__: group}),
        ("ray.util.scheduling_strategies", {"PlacementGroupSchedulingStrategy": None}),
    ):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace(**part))
    for name in ("ray", "ray.util"):
        monkeypatch.setitem(sys.modules, name, SimpleNamespace())
    plan = plan_for(tmp_path, actors=2, topology=topology(2))
    with pytest.raises(UserError, match="3 CPUs and 0 GPUs, "):
        ray_cluster.Ray().reserve(plan)
