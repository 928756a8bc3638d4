"""The nodes of a Ray cluster, without Ray, the bundles of a plan, and what --dry-run says."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from launch.backends.ray_placement import (
    HEAD,
    Bundle,
    bundles,
    gpus_of,
    machines_of_nodes,
    ray_machines,
)
from launch.cli import main
from launch.topology.machines import (
    ActorPlace,
    Machine,
    RequestedPlaces,
    described,
    parse_learner,
)
from launch.topology.placement import Ranks, Topology, place
from r3l.errors import UserError
from r3l.files.own_packages import ROOT
from tests.launch.fakes import refused

PLANS = Path(__file__).parent / "plans"


def placed(actors: int, learner: str, hardware: str, **more: int) -> Topology:
    ranks, device, machines = parse_learner(learner)
    return place(RequestedPlaces(actors, ranks, device, machines, **more), described(hardware))


def test_ranks_are_reserved_by_machine_and_actors_one_by_one() -> None:
    made = bundles(placed(3, "2x1cpu", "3x4cpu"))
    processes = [bundle.processes for bundle in made]
    assert processes == [("learner",), ("learner-1",), ("actor-0",), ("actor-1",), ("actor-2",)]
    assert [bundle.resources for bundle in made] == [{"CPU": 1, HEAD: 0.001}, *[{"CPU": 1}] * 4]


def test_actors_that_share_a_gpu_are_reserved_together() -> None:
    made = bundles(placed(4, "2gpu", "2x2x80GB"))
    assert made == (
        Bundle("host-0", ("learner", "learner-1"), ("0", "1"), head=True),
        Bundle("host-1", ("actor-0", "actor-2"), ("0",)),
        Bundle("host-1", ("actor-1", "actor-3"), ("1",)),
    )
    assert made[1].resources == {"CPU": 2, "GPU": 1}


def test_actors_on_the_gpus_of_ranks_are_reserved_with_these() -> None:
    places = (ActorPlace("localhost", ("0", "1"), 0.4),) * 2
    ranks = (Ranks("localhost", 2, ("0", "1")),)
    topology = Topology(described("2x80GB"), "gpu", ranks, places)
    names = ("learner", "learner-1", "actor-0", "actor-1")
    assert bundles(topology) == (Bundle("localhost", names, ("0", "1"), head=True),)
    assert set(gpus_of(topology).values()) == {("0", "1")}


def test_every_process_is_in_one_bundle_with_its_gpus() -> None:
    topology = placed(10, "2x8gpu", "3x8x80GB", actor_gpus=2)
    made = bundles(topology)
    names = [name for bundle in made for name in bundle.processes]
    assert sorted(names) == sorted(gpus_of(topology)) and len(names) == 26
    seen = gpus_of(topology)
    assert all(set(seen[name]) <= set(b.gpus) for b in made for name in b.processes)
    assert sum(b.resources.get("GPU", 0) for b in made) == 24


def test_a_dry_run_is_the_one_on_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    sizes = ["--hardware", "3x8x80GB", "--actors", "4", "--learner", "2x8gpu", "--actor-gpus", "2"]
    result = CliRunner().invoke(
        main, ["--dry-run", "--cluster", "ray", "--run", "runs/plan", *sizes]
    )
    assert result.exit_code == 0, result.output
    said = result.output
    for path, short in ((sys.executable, "python"), (tmp_path, "/shared"), (ROOT, "/r3l")):
        said = said.replace(str(path), short)
    file = PLANS / "ray-3x8gpu.txt"
    if os.environ.get("R3L_WRITE_PLANS"):
        file.write_text(said)
    assert said == file.read_text()
    assert not (tmp_path / "runs").exists(), "nothing is written"


def node(address: str, *, head: bool = False, alive: bool = True, **has: float) -> dict[str, Any]:
    resources = has | ({HEAD: 1.0} if head else {})
    return {"NodeManagerAddress": address, "NodeID": address, "Alive": alive,
            "Resources": resources}  # fmt: skip


def cluster(monkeypatch: pytest.MonkeyPatch, nodes: list[dict[str, Any]], here: str) -> None:
    fake = SimpleNamespace(
        is_initialized=lambda: True,
        nodes=lambda: nodes,
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: here),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)


def test_nodes_are_machines_and_the_head_is_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    gone = node("10.0.0.9", alive=False, CPU=8.0)
    others = [node("10.0.0.2", CPU=8.0), gone, node("10.0.0.1", head=True, CPU=4.0)]
    cluster(monkeypatch, others, here="10.0.0.1")
    assert ray_machines() == (Machine("10.0.0.1", cores=4), Machine("10.0.0.2", cores=8))


def test_gpus_are_counted_and_taken_to_have_the_memory_of_the_heads() -> None:
    nodes = [node("10.0.0.1", head=True, CPU=4.0, GPU=2.0), node("10.0.0.1", CPU=4.0)]
    machines = machines_of_nodes(nodes, lambda: 80.0)
    assert machines[0] == Machine("10.0.0.1", ("0", "1"), 80.0, 4)
    assert machines[1] == Machine("10.0.0.1-1", cores=4), "each has a name of its own"


def test_another_node_than_the_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("10.0.0.1", head=True), node("10.0.0.2")]
    cluster(monkeypatch, nodes, here="10.0.0.2")
    with pytest.raises(UserError, match="not the head node"):
        ray_machines()


def test_without_ray_one_line_names_the_extra(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install 'r3l[ray]'" in refused("--cluster", "ray", "--run", run)
    assert not run.exists()


def test_without_a_cluster_one_line_says_how_to_start_one(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)

    def init(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.\nMore.")

    fake = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setitem(sys.modules, "ray", fake)
    line = refused("--cluster", "ray", "--run", run)
    assert "no cluster " in line and "Could not find any running Ray instance." in line
    assert "`ray start --head`" in line and not run.exists()


def test_an_address_where_nobody_listens_is_refused_at_once(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: False))
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    line = refused("--cluster", "ray", "--run", run)
    assert "RAY_ADDRESS=127.0.0.1:1 cannot be reached" in line and not run.exists()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--hardware", "2x8cpu"], "--hardware 2x8cpu: is only for planning"),
        (["--dry-run", "--hardware", "2x8cpu", "--actors", "2",
          "--buffer", "tcp://127.0.0.1:5555"], "actors on host-1 cannot reach it"),
        (["--dry-run", "--hardware", "8cpu", "--buffer", "tcp://127.0.0.1:5555"],
         "actors on other nodes cannot reach it"),
    ],
)  # fmt: skip
def test_options_that_do_not_fit_a_cluster_are_refused(
    run: Path, options: list[str], why: str
) -> None:
    assert why in refused("--cluster", "ray", "--run", run, *options) and not run.exists()
