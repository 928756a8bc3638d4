"""Which machines and GPUs a plan is for."""

import os
from pathlib import Path

import pytest

from launch.topology import machines
from launch.topology.machines import (
    Machine,
    RequestedPlaces,
    described,
    parse_learner,
    smallest_gib,
    usable_cores,
)
from r3l.errors import UserError


def test_only_the_gpus_of_cuda_visible_devices_are_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for gpu in range(8):
        (tmp_path / f"gpu{gpu}").write_text("")
    monkeypatch.setattr(machines, "GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert machines.visible_gpus() == [str(i) for i in range(8)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4, 5,6")
    assert machines.visible_gpus() == ["4", "5", "6"]
    monkeypatch.setattr(machines, "gpu_gib", lambda: 80.0)
    assert machines.this_machine().gpus == ("4", "5", "6")


def test_machines_can_be_described() -> None:
    assert described("4cpu") == (Machine("localhost", cores=4),)
    assert described("2x4cpu")[1] == Machine("host-1", cores=4)
    (one,) = described("8x80GB")
    assert (one.name, len(one.gpus), one.gpu_gib) == ("localhost", 8, 80.0)
    assert [m.name for m in described("2x8x141GiB")] == ["host-0", "host-1"]
    for text in ("8", "80GB", "2x8", "0x8x80GB", "8x0GB", "2x2x2x2GB", ""):
        with pytest.raises(UserError, match=r"2x8x80GB.* 8cpu"):
            described(text)


def test_the_smallest_gpu_decides() -> None:
    assert smallest_gib("81920\n40960\n[N/A]\n") == 40.0
    assert smallest_gib("[N/A]\n") is None and smallest_gib("") is None


def test_the_cores_are_those_that_the_control_group_grants(tmp_path: Path) -> None:
    own = len(os.sched_getaffinity(0))
    limit = tmp_path / "cpu.max"
    assert usable_cores(limit) == own
    for text, cores in (("max 100000", own), ("50000 100000", 1), (f"{own}00000 100000", own)):
        limit.write_text(text + "\n")
        assert usable_cores(limit) == cores


def test_a_learner_is_ranks_a_device_and_maybe_machines() -> None:
    assert parse_learner("1cpu") == (1, "cpu", None)
    assert parse_learner("8gpu") == (8, "gpu", None)
    assert parse_learner("2x8gpu") == (16, "gpu", 2)
    assert (
        RequestedPlaces(1, 16, "gpu", 2).learner == "2x8gpu"
        and RequestedPlaces(1, 3, "cpu").learner == "3cpu"
    )


@pytest.mark.parametrize("text", ["gpu", "0gpu", "2x", "2x0gpu", "x8gpu", "2x2x2gpu", "8 gpu"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="1cpu or 8gpu"):
        parse_learner(text)
