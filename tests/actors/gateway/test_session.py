"""A session samples each request once and fails by name."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Coroutine
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from actors.dialects.chat_completions import AgentRequest, Refused
from actors.gateway import session as module
from actors.gateway.parsers import ReplyReader
from actors.gateway.recorded_call import (
    ContinuingPlayer,
    RecordedCall,
    RetryPlayer,
    hash_of_request,
)
from actors.gateway.session import Session
from r3l.errors import EngineDead, EngineFailed, RequestRefused, UserError
from r3l.records import Task
from r3l.rollout.agent_chat import PROBE_TOOLS, AgentChat
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.views.tape import TapedCall
from tests.actors.gateway.test_parsers import CALL
from tests.r3l.fakes import CharTokenizer, ScriptedPolicy
from tests.r3l.rollout.test_agent_chat import QWEN

ASKED = AgentRequest(({"role": "user", "content": "hi"},), max_tokens=64)


class Vocabulary(CharTokenizer):
    """Characters, with the vocabulary that vLLM's parsers ask for."""

    def get_vocab(self) -> dict[str, int]:
        return {}


def session_of(policy: ScriptedPolicy, **more: Any) -> Session:
    reader = ReplyReader(AgentChat(policy.chat), "auto", "auto")
    params = partial(SampleParams, 32, 0.5)
    return Session(policy, reader, ActorMetrics(), Task("t", "agent", 0), params, **more)


def played(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_a_request_whose_client_went_is_sampled_once() -> None:
    async def test() -> None:
        policy = ScriptedPolicy(lambda text: "yes")
        session = session_of(policy)
        one = session.sampling(ASKED, "d", "chat", again=False, gone=lambda: True)
        two = session.sampling(ASKED, "d", "chat", again=False)
        assert await one is await two and len(policy.prompts) == 1
        assert policy.asked[0].max_tokens == 32 and policy.asked[0].temperature == 0.5

    played(test)


def test_equal_requests_at_once_are_samples_of_their_own() -> None:
    async def test() -> None:
        said = iter(["one", "two", "three"])
        session = session_of(ScriptedPolicy(lambda text: next(said)))
        tasks = [session.sampling(ASKED, "d", "chat", again=False) for _ in range(3)]
        answers = [await task for task in tasks]
        for task in tasks:
            session.received(task)
        texts = [answer["choices"][0]["message"]["content"] for answer in answers]
        assert texts == ["one", "two", "three"]
        assert session.metrics.agent["with_tools"] == session.metrics.agent["tools_called"] == 0
        assert [call.trained for call in session.tree.tape()] == [True] * 3
        assert len(session.tree.leaves()) == 3

    played(test)


def test_an_answer_that_was_not_received_is_kept_for_the_retry() -> None:
    async def test() -> None:
        policy = ScriptedPolicy(lambda text: "yes")
        session = session_of(policy)
        sampling = session.sampling(ASKED, "d", "chat", again=False, gone=lambda: True)
        first = await sampling
        assert await session.sampling(ASKED, "d", "chat", again=False) is first
        session.received(sampling)
        assert await session.sampling(ASKED, "d", "chat", again=True) is first
        assert await session.sampling(ASKED, "d", "chat", again=False) is not first
        assert len(policy.prompts) == 2
        assert [call.trained for call in session.tree.tape()] == [True, False]

    played(test)


def test_a_request_that_failed_is_sampled_when_it_is_made_again() -> None:
    class Once(ScriptedPolicy):
        async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
            if not self.prompts:
                self.prompts.append("")
                raise RequestRefused("not now", cause="engine_request")
            return await super().sample(token_ids, params)

    async def test() -> None:
        session = session_of(Once(lambda text: "yes"))
        with pytest.raises(Refused, match="not now"):
            await session.sampling(ASKED, "d", "chat", again=False, gone=lambda: True)
        answer = await session.sampling(ASKED, "d", "chat", again=True)
        assert answer["choices"][0]["message"]["content"] == "yes"

    played(test)


def test_a_reply_ends_before_its_stop_text_and_its_tokens_stay_as_they_were_sampled() -> None:
    async def test() -> None:
        said = "so \nEND and"  # the last token may hold more than the stop text
        asked = replace(ASKED, stop=("END",))
        session = session_of(ScriptedPolicy(lambda text: said))
        answer = await session.sampling(asked, "d", "chat", again=False)
        (node,) = session.tree.nodes
        assert node.sample and session.policy.chat.text(node.sample.token_ids) == said
        message = {"role": "assistant", "content": "so"}  # as a client may send it back
        more = (*ASKED.messages, message, {"role": "user", "content": "and?"})
        assert session.tree.next(more, ()).parent is node
        call = session.tree.tape()[0]
        repeated = session_of(ScriptedPolicy(lambda text: "else"))
        repeated.tape = ContinuingPlayer([RecordedCall(call, node.given, node.sample)])
        again = await repeated.sampling(asked, "d", "chat", again=False)
        for each in (answer, again):
            (choice,) = each["choices"]
            assert choice["message"]["content"] == "so \n" and choice["stop_reason"] == "END"

    played(test)


def test_a_call_does_not_keep_all_messages_of_its_request() -> None:
    async def test() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        asked = replace(ASKED)
        alive = weakref.ref(asked)
        await session.sampling(asked, "d", "chat", again=False)
        del asked
        gc.collect()
        assert alive() is None and session.tree.tape()[0].reply["content"] == "yes"

    played(test)


def test_a_reply_that_shall_not_be_trained_is_sampled_and_marked() -> None:
    async def test() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        for trained in (True, False):
            asked = replace(ASKED, trained=trained)
            sampling = session.sampling(asked, f"{trained}", "chat", again=False)
            await sampling
            session.received(sampling)
        assert [call.trained for call in session.tree.tape()] == [True, False]

    played(test)


def test_guidance_is_shown_to_trained_seats_alone() -> None:
    async def test() -> None:
        policy = ScriptedPolicy(lambda text: "yes")
        session = session_of(policy)
        session.guidance = "go right"
        for trained in (True, False):
            await session.sampling(
                replace(ASKED, trained=trained), f"{trained}", "chat", again=False
            )
        assert ["go right" in text for text in policy.prompts] == [True, False]

    played(test)


def test_a_reply_of_several_calls_is_cut_after_the_first_if_one_is_allowed() -> None:
    async def test() -> None:
        policy = ScriptedPolicy(lambda text: f"so\n{CALL}\n{CALL} and more")
        policy.chat = ChatFormat(Vocabulary(QWEN))
        for parallel in (True, False):
            session = session_of(policy)
            asked = replace(ASKED, tools=PROBE_TOOLS, parallel=parallel, max_tokens=500)
            session.params = lambda step: SampleParams(500)
            answer = await session.sampling(asked, "d", "chat", again=False)
            (choice,), (node,) = answer["choices"], session.tree.nodes
            assert node.sample is not None and not node.untrained
            said = policy.chat.tokenizer.decode(node.sample.token_ids)
            assert len(choice["message"]["tool_calls"]) == (2 if parallel else 1)
            counts = session.metrics.agent
            assert counts["with_tools"] == counts["tools_called"] == 1
            assert said.endswith(" and more<|im_end|>" if parallel else f"so\n{CALL}")
            assert len(node.sample.logprobs) == len(node.sample.token_ids)
            assert answer["usage"]["completion_tokens"] == len(node.sample.token_ids)

    played(test)


def test_calls_that_cannot_be_cut_one_by_one_are_refused_by_name() -> None:
    async def test() -> None:
        policy = ScriptedPolicy(lambda text: "yes")
        policy.chat = ChatFormat(Vocabulary(QWEN))
        session = session_of(policy)
        session.reader._end_of_call = "no such end"
        with pytest.raises(Refused, match="parallel_tool_calls"):
            asked = replace(ASKED, tools=PROBE_TOOLS, parallel=False)
            session.sampling(asked, "d", "chat", again=False)

    played(test)


def test_a_full_context_is_refused_and_noted() -> None:
    async def test() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes", context_length=5))
        with pytest.raises(Refused) as refused:
            await session.sampling(ASKED, "d", "chat", again=False)
        assert refused.value.code == "context_length_exceeded" and session.full

    played(test)


@pytest.mark.parametrize(
    ("error", "status"), [(EngineDead("gone"), 503), (EngineFailed("no", cause="x"), 400)]
)
def test_a_failing_engine_ends_the_session_with_its_error(error: Exception, status: int) -> None:
    class Broken(ScriptedPolicy):
        async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
            raise error

    async def test() -> None:
        session = session_of(Broken(lambda text: ""))
        with pytest.raises(Refused) as refused:
            await session.sampling(ASKED, "d", "chat", again=False)
        assert refused.value.status == status
        assert session.problem is error and session.ended.is_set()

    played(test)


def test_a_request_that_the_engine_refuses_leaves_the_attempt_open() -> None:
    class Refusing(ScriptedPolicy):
        async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
            if params.json_schema:
                raise RequestRefused("the engine refuses a bad schema", cause="engine_request")
            return await super().sample(token_ids, params)

    async def test() -> None:
        session = session_of(Refusing(lambda text: "yes"))
        with pytest.raises(Refused, match="bad schema") as refused:
            shaped = replace(ASKED, json_schema={"type": "what"})
            await session.sampling(shaped, "d", "chat", again=False)
        assert refused.value.status == 400 and session.problem is None
        await session.sampling(ASKED, "e", "chat", again=False)

    played(test)


def test_calls_after_the_result_and_beyond_the_limits_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_CALLS", 1)

    async def test() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        await session.sampling(ASKED, "d", "chat", again=False)
        for code in ("too_many_calls", "attempt_is_over"):
            with pytest.raises(Refused) as refused:
                session.sampling(ASKED, code, "chat", again=False)
            assert refused.value.code == code
            session.end()
        with pytest.raises(Refused):
            session.finish({"reward": 1.0})

    played(test)


def test_only_a_call_that_begins_another_conversation_meets_their_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_CONVERSATIONS", 2)

    async def test() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes"))

        async def call(*said: str) -> None:
            roles = ("user", "assistant") * 2
            messages = [{"role": r, "content": t} for r, t in zip(roles, said, strict=False)]
            await session.sampling(AgentRequest((*messages,)), str(said), "chat", again=False)

        await call("a")  # whose answer the agent never receives
        await call("b")
        for said in (("c",), ("b", "no", "again")):
            with pytest.raises(Refused) as refused:
                await call(*said)
            assert refused.value.code == "too_many_conversations" and len(session.tree.nodes) == 2
        await call("b", "yes", "go on")
        with pytest.raises(Refused):
            await call("b", "yes", "or so")
        assert len(session.tree.nodes) == 3

    played(test)


def test_tools_need_a_template_that_shows_them() -> None:
    async def test() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        tool = {"type": "function", "function": {"name": "add"}}
        with pytest.raises(Refused, match="does not support tools"):
            session.sampling(AgentRequest(ASKED.messages, (tool,)), "d", "chat", again=False)

    played(test)


def test_what_is_sampled_when_a_session_closes_is_refused() -> None:
    class Slow(ScriptedPolicy):
        async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
            await asyncio.sleep(60)
            raise AssertionError

    async def test() -> None:
        session = session_of(Slow(lambda text: ""))
        sampling = session.sampling(ASKED, "d", "chat", again=False)
        await asyncio.sleep(0)
        session.close()
        with pytest.raises(Refused, match="has ended"):
            await sampling

    played(test)


def test_a_refused_request_leaves_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def refusing(*_: Any, **__: Any) -> None:
        raise UserError("the template refuses it")

    async def test() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        with monkeypatch.context() as patched:
            patched.setattr(session.tree, "next", refusing)
            with pytest.raises(Refused, match="refuses it"):
                await session.sampling(ASKED, "d", "chat", again=False)
        await session.sampling(ASKED, "e", "chat", again=False)
        assert [node.reply["content"] for node in session.tree.nodes] == ["yes"]

    played(test)


@pytest.mark.parametrize("taped", [True, False])
def test_a_retry_whose_guidance_the_template_refuses_fails_at_once_by_name(
    monkeypatch: pytest.MonkeyPatch, taped: bool
) -> None:
    def refusing(*_: Any, **__: Any) -> None:
        raise UserError("the template refuses it")

    async def test() -> None:
        call = TapedCall("chat", hash_of_request(ASKED, ()), -1, ASKED.messages)
        session = session_of(ScriptedPolicy(lambda text: "yes"), guidance="go right")
        session.tape = RetryPlayer([RecordedCall(call)], 0) if taped else None
        monkeypatch.setattr(session.tree, "guide", refusing)
        with pytest.raises(Refused, match="refuses it"):
            await session.sampling(ASKED, "d", "chat", again=False)
        assert session.problem is not None and session.problem.cause == "guidance_refused"
        assert session.restored.is_set()  # what waits for the world ends
        assert not session.tree.nodes

    played(test)


def test_an_attempt_has_one_grammar_tried_at_a_time() -> None:
    open_now, most = 0, []

    class Tries(ScriptedPolicy):
        async def check_grammar(self, params: SampleParams) -> None:
            nonlocal open_now
            open_now += 1
            most.append(open_now)
            await asyncio.sleep(0)
            open_now -= 1
            raise RequestRefused("no", cause="grammar_refused")

    async def test() -> None:
        session = session_of(Tries(lambda text: "yes"))
        asked = [
            replace(ASKED, json_schema={"minLength": n}) for n in range(module.MOST_REFUSED + 4)
        ]
        tasks = [
            session.sampling(each, f"d{n}", "chat", again=False) for n, each in enumerate(asked)
        ]
        said = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(each, Refused) for each in said)
        assert most == [1] * module.MOST_REFUSED

    played(test)


SHAPE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}


class Shaping(ScriptedPolicy):
    """Keeps to a shape under its grammar alone, or also without it."""

    def __init__(self, free: str) -> None:
        super().__init__(lambda text: free)
        self.free = free

    async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
        self.reply = lambda text: self.free if params.json_schema is None else '{"a": 1}'
        return await super().sample(token_ids, params)


@pytest.mark.parametrize(
    ("free", "shapes", "trained", "samples"),
    [
        ('{"a": 7}', "free_first", True, 1),
        ("seven", "free_first", True, 2),
        ("seven", "free_first", False, 1),
        ("seven", "grammar", True, 1),
    ],
)
def test_a_reply_with_a_shape_is_sampled_freely_first_and_then_trained(
    free: str, shapes: Any, trained: bool, samples: int
) -> None:
    async def test() -> None:
        policy = Shaping(free)
        session = session_of(policy, shapes=shapes)
        asked = replace(ASKED, json_schema=SHAPE, trained=trained)
        answer = await session.sampling(asked, "d", "chat", again=False)
        fits = free != "seven"
        said = free if fits else '{"a": 1}'
        assert answer["choices"][0]["message"]["content"] == said and len(policy.asked) == samples
        (node,) = session.tree.nodes
        assert node.sample and policy.chat.text(node.sample.token_ids) == said
        assert node.untrained == ("" if fits else "grammar" if trained else "asked")
        (call,) = session.tree.tape()
        assert call.missed == ("seven" if samples == 2 else "")
        counts = session.metrics.agent
        assert (counts["shapes_asked"], counts["shapes_missed"]) == (
            int(trained), int(trained and not fits),
        )  # fmt: skip

    played(test)


@pytest.mark.parametrize("free", ['{"a": 7}', "seven"])
def test_a_replayed_reply_with_a_shape_is_trained_or_not_as_it_was(free: str) -> None:
    async def test() -> None:
        first = session_of(Shaping(free))
        asked = replace(ASKED, json_schema=SHAPE)
        answer = await first.sampling(asked, "d", "chat", again=False)
        (node,), (call,) = first.tree.nodes, first.tree.tape()
        for shapes in ("free_first", "grammar"):
            policy = Shaping("else")
            again = session_of(policy, shapes=shapes)
            again.tape = ContinuingPlayer([RecordedCall(call, node.given, node.sample)])
            repeated = await again.sampling(asked, "d", "chat", again=False)
            assert repeated["choices"] == answer["choices"] and not policy.asked
            assert again.tree.nodes[0].untrained == node.untrained
            assert again.tree.nodes[0].sample == node.sample

    played(test)


@pytest.mark.parametrize("said", [CALL, "I would rather not."])
def test_a_forced_call_that_the_policy_makes_by_itself_is_trained(said: str) -> None:
    async def test() -> None:
        policy = ScriptedPolicy(lambda text: said)
        policy.chat = ChatFormat(Vocabulary(QWEN))
        session = session_of(policy)
        session.params = lambda step: SampleParams(500)
        asked = replace(ASKED, tools=PROBE_TOOLS, choice="required", max_tokens=500)
        sampling = session.sampling(asked, "d", "chat", again=False)
        if said == CALL:
            (choice,) = (await sampling)["choices"]
            assert choice["message"]["tool_calls"] and not session.tree.nodes[0].untrained
        else:
            await asyncio.gather(sampling, return_exceptions=True)
            assert len(policy.asked) == 2 and session.tree.nodes[0].untrained == "grammar"
        grammars = [each.json_schema or each.structural_tag for each in policy.asked]
        assert grammars[0] is None and all(grammars[1:])

    played(test)


def test_a_call_knows_which_replies_the_agent_had() -> None:
    async def test() -> None:
        session = session_of(ScriptedPolicy(lambda text: "yes"))
        one, two = (session.sampling(ASKED, "d", "chat", again=False) for _ in range(2))
        await asyncio.gather(one, two)
        session.received(two)
        await session.sampling(ASKED, "e", "chat", again=False)
        assert [sorted(node.heard) for node in session.tree.nodes] == [[], [], [1]]

    played(test)
