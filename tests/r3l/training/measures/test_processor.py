"""How many threads compute, and what a step's last bits depend on."""

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from r3l.training.measures import processor as module
from r3l.training.measures.processor import differences, facts, fix_threads, processor
from tests.test_architecture import ROOMS, ROOT

HERE = torch.device("cpu")


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def libraries() -> ctypes.CDLL:
    """PyTorch's libraries, with MKL inside."""
    found = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
    if not hasattr(found, "mkl_serv_get_dynamic"):
        pytest.skip("this PyTorch has no MKL")
    return found


def test_with_fixed_threads_mkl_never_uses_fewer() -> None:
    mkl = libraries()
    mkl.MKL_Set_Dynamic(1)
    assert mkl.mkl_serv_get_dynamic() == 1
    fix_threads()
    assert mkl.mkl_serv_get_dynamic() == 0


def test_fixed_threads_are_as_many_as_asked_for_or_as_before() -> None:
    fix_threads(3)
    assert torch.get_num_threads() == 3
    fix_threads()
    assert torch.get_num_threads() == 3 and facts(HERE)["threads"] == "3"


def test_threads_are_fixed_in_one_place() -> None:
    rooms = (*ROOMS, "lab", "benchmarks")
    paths = [path for room in rooms for path in (ROOT / room).rglob("*.py")]
    callers = {
        path.relative_to(ROOT).as_posix()
        for path in paths
        if "set_num_threads(" in path.read_text(encoding="utf-8") and "tests" not in path.parts
    }
    # An actor computes with one thread until it has forked its engine.
    assert callers == {"r3l/training/measures/processor.py", "actors/engine_process.py"}


def test_the_facts_name_processor_and_libraries_and_what_is_unknown_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in module.SWITCHES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    found = facts(HERE, 2)
    assert found["processor"] == processor() and found["torch"] == torch.__version__
    assert found["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert (found["ranks"], found["MKL_CBWR"]) == ("2", "COMPATIBLE")
    assert "ATEN_CPU_CAPABILITY" not in found and "GPU" not in found
    built_in = torch.__config__.show()
    for name in ("MKL", "oneDNN"):
        assert name not in found or f"{found[name]} " in built_in.replace("\n", " ")
    assert os.uname().machine != "x86_64" or found.keys() >= {"MKL", "oneDNN"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "processor\t: 0\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)\n"
            "stepping\t: 8\n\nprocessor\t: 1\nmodel name\t: another\n",
            "Intel(R) Xeon(R) (6/143/8)",
        ),
        ("processor\t: 0\nBogoMIPS\t: 50.00\n", os.uname().machine),
    ],
)
def test_a_kind_of_processor_has_its_name_and_numbers(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "cpuinfo").write_text(text)
    assert processor(tmp_path / "cpuinfo") == said
    assert processor(tmp_path / "none")


def test_what_differs_between_two_machines_is_named_but_for_their_threads() -> None:
    there = {"processor": "A", "torch": "2.13.0", "threads": "2"}
    assert differences(there, there | {"threads": "4"}) == ""
    here = {"processor": "B", "torch": "2.13.0", "MKL_CBWR": "AVX2"}
    assert differences(there, here) == "processor A there, B here; MKL_CBWR none there, AVX2 here"
    assert differences({}, here) == ""
