"""Grammars are tried in a helper process, once each, whatever becomes of the helper."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from actors.grammars.grammar_check import MOST_KNOWN, GrammarCheck
from r3l.errors import EngineFailed, RequestRefused
from r3l.models.model_folder import read_tokenizer
from r3l.models.model_path import builtin_policy
from r3l.rollout.policy_interface import SampleParams

Test = Callable[[GrammarCheck], Awaitable[None]]


def with_check(test: Test) -> None:
    async def run() -> None:
        tokenizer = read_tokenizer(builtin_policy(), "the built-in policy")
        check = GrammarCheck(tokenizer, len(tokenizer), [0], separators=[",", ":"])
        try:
            await test(check)
        finally:
            check.close()

    asyncio.run(run())


def shaped(schema: Any) -> SampleParams:
    return SampleParams(8, json_schema=schema)


def test_a_grammar_is_tried_once_and_its_verdict_remembered() -> None:
    async def test(check: GrammarCheck) -> None:
        await check.check(SampleParams(8))
        assert check.quick.process is None  # nothing starts without a grammar
        await asyncio.gather(*(check.check(shaped({"type": "object"})) for _ in range(3)))
        for _ in range(2):
            with pytest.raises(RequestRefused, match="no finite text") as refused:
                await check.check(shaped({"$ref": "#"}))
            assert refused.value.cause == "grammar_refused"
        with pytest.raises(RequestRefused, match="cannot be compiled"):
            await check.check(SampleParams(8, structural_tag="{}"))
        assert len(check.known) == 3
        check.known.update((str(n), "") for n in range(MOST_KNOWN))
        await check.check(shaped({"type": "array"}))
        assert len(check.known) <= MOST_KNOWN + 3

    with_check(test)


def test_a_helper_that_is_killed_fails_one_request_by_name() -> None:
    async def test(check: GrammarCheck) -> None:
        await check.check(shaped({"type": "object"}))
        assert check.quick.process is not None
        os.kill(check.quick.process.pid, signal.SIGSTOP)
        asking = asyncio.create_task(check.check(shaped({"type": "array"})))
        await asyncio.sleep(0.1)
        os.kill(check.quick.process.pid, signal.SIGKILL)
        with pytest.raises(EngineFailed) as failed:
            await asking
        assert failed.value.cause == "grammar_check"
        await check.check(shaped({"type": "array"}))  # by another helper

    with_check(test)


SLOW = {"type": "string", "pattern": "^[a-z]{1,20000}$"}
"""A short schema that takes longer than QUICK_S."""


def large(properties: int = 3000) -> dict[str, Any]:
    names = (f"k{n}" for n in range(properties))
    return {"type": "object", "properties": {name: {"type": "string"} for name in names}}


def test_a_short_schema_does_not_wait_for_a_long_one() -> None:
    async def test(check: GrammarCheck) -> None:
        async with check.slow.turn:  # as if a long one were tried without an end
            await check.check(shaped({"type": "array"}))
            waiting = asyncio.create_task(check.check(shaped(large(200))))
            await check.check(shaped({"type": "integer"}))
            assert not waiting.done() and check.slow.process is None
        await waiting

    with_check(test)


def test_a_short_schema_that_takes_long_goes_to_the_slow_helper() -> None:
    async def test(check: GrammarCheck) -> None:
        async with check.slow.turn:
            hostile = asyncio.create_task(check.check(shaped(SLOW)))
            await asyncio.sleep(0)
            await check.check(shaped({"type": "array"}))  # waits for QUICK_S
            assert not hostile.done()
        hostile.cancel()

    with_check(test)
