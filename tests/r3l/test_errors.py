"""Errors survive pickling and the wire with their type, sentence and facts."""

import pickle
import sys

import pytest

from r3l import errors
from r3l.errors import (
    TORCH_CPU_INDEX,
    R3LError,
    did_you_mean,
    from_wire,
    install,
    install_module,
    root_cause,
    to_wire,
)


def every_error(root=R3LError):
    yield root
    for child in root.__subclasses__():
        yield from every_error(child)


@pytest.mark.parametrize("kind", sorted(every_error(), key=lambda kind: kind.__name__))
def test_an_error_survives_pickling_and_the_wire(kind):
    error = kind("it broke", group="g", slot=3)
    for copy in (pickle.loads(pickle.dumps(error)), from_wire(to_wire(error))):
        assert type(copy) is kind
        assert (str(copy), copy.facts) == ("it broke", {"group": "g", "slot": 3})


def test_every_error_is_also_a_standard_exception():
    standard = (ValueError, RuntimeError, LookupError, TimeoutError, OSError)
    assert all(issubclass(k, standard) for k in every_error() if k is not R3LError)
    assert errors.UserError("x").cause == "UserError"
    assert errors.ReflectionError("x", cause="not_json").cause == "not_json"


@pytest.mark.parametrize("values", [{}, {"error": "Mystery"}, {"error": 5, "facts": [1]}])
def test_an_unknown_error_is_read_as_the_general_one(values):
    assert type(from_wire(values)) is R3LError


def test_a_question_names_the_known_name_that_was_probably_meant() -> None:
    keys = ["learner.lr", "learner.lease_s", "seed"]
    assert did_you_mean("lr", keys) == " (did you mean learner.lr?)"
    assert did_you_mean("sede", keys) == " (did you mean seed?)"
    assert did_you_mean("gpro", ["gspo", "grpo"]) == " (did you mean grpo?)"
    assert did_you_mean("colour", keys) == ""


def test_an_extra_is_installed_by_the_interpreter_that_lacks_it() -> None:
    pip = f"{sys.executable} -m pip install"
    assert install("math") == f"{pip} 'r3l[math]'"
    assert install_module("zmq") == f"{pip} r3l pyzmq"
    with_cpus = f"{pip} --extra-index-url {TORCH_CPU_INDEX} 'r3l[cpu]'"
    gpu_or_cpu = f"{pip} 'r3l[gpu]' or, without an NVIDIA GPU, {with_cpus}"
    assert install_module("torch") == gpu_or_cpu


def test_the_first_error_of_a_chain_is_named() -> None:
    try:
        try:
            raise RuntimeError("operator x\n does not exist")
        except RuntimeError as error:
            raise ModuleNotFoundError("Could not import module") from error
    except ModuleNotFoundError as error:
        assert root_cause(error) == "RuntimeError: operator x does not exist"
