"""Engine arguments: those the actor sets itself, the user's, and all that vLLM knows."""

import dataclasses

import pytest

from actors.engine_arguments import check_engine_arguments, known_arguments
from r3l.config import ActorConfig
from r3l.errors import UserError


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("model", r"^actor\.engine\.model: set by the actor itself; set model instead$"),
        ("max_model_len", "set actor.max_model_len instead"),
        ("weight_transfer_config", "leave it out"),
        ("max-num-seq", "not an engine argument of vLLM; did you mean max_num_seqs"),
        ("qwertz", "see vLLM's engine arguments"),
    ],
)
def test_an_argument_of_the_actor_and_an_unknown_one_are_refused_with_what_to_set(
    argument: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        check_engine_arguments(ActorConfig(engine={argument: 1}))


def test_other_arguments_of_vllm_are_the_users() -> None:
    check_engine_arguments(ActorConfig(engine={"max_num_seqs": 8, "block_size": 32}))


@pytest.mark.system
def test_the_arguments_read_from_vllms_source_are_those_of_its_class() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs

    assert known_arguments() == {field.name for field in dataclasses.fields(AsyncEngineArgs)}
