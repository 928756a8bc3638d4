"""The bundles of a plan, and what --dry-run says about them."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from launch.backends.processes import ROOT
from launch.backends.ray_nodes import HEAD
from launch.backends.ray_placement import Bundle, bundles, gpus_of
from launch.cli import main
from launch.topology.machines import ActorPlace, RequestedPlaces, described, parse_learner
from launch.topology.placement import Ranks, Topology, place

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
