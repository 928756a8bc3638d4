"""Engine arguments: those the actor sets itself, the user's, and all that vLLM knows."""

import dataclasses
import json

import pytest

from actors.engine_arguments import check_engine_arguments, known_arguments
from r3l.errors import UserError
from r3l.models.model_path import builtin_policy
from r3l.rollout.reflection import FIELDS, json_schema
from r3l.run.settings.actor import ActorConfig


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("model", r"^actor\.engine\.model: .*set model instead$"),
        ("max_model_len", "set actor.max_model_len instead"),
        ("weight_transfer_config", "leave it out"),
        ("logprobs_mode", "leave it out"),
        ("trust_remote_code", "leave it out"),
        ("max-num-seq", r"did you mean max_num_seqs\?"),
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


def test_the_grammar_of_a_reflection_holds_each_outcome_to_its_branch() -> None:
    import xgrammar
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(builtin_policy())
    compiler = xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer))
    grammar = compiler.compile_json_schema(
        json.dumps(json_schema(3)), any_whitespace=False, separators=(",", ":")
    )

    def admits(outcome: str, root_cause: object, suggestion: object, pivot: object) -> bool:
        values = ("went north", root_cause, outcome, suggestion, pivot)
        text = json.dumps(dict(zip(FIELDS, values, strict=True)), separators=(",", ":"))
        matcher = xgrammar.GrammarMatcher(grammar, terminate_without_stop_token=True)
        return matcher.accept_string(text) and matcher.is_terminated()

    assert admits("success", None, None, None)
    for rest in (("why", None, None), (None, "go south", None), (None, None, 1)):
        assert not admits("success", *rest)
    for outcome in ("failure", "success_but_inefficient"):
        assert admits(outcome, "why", "go south", 2) and admits(outcome, None, "go south", 0)
        for rest in ((None, None, 1), (None, "", 1), (None, "go south", None), (None, "go", 3)):
            assert not admits(outcome, *rest)
