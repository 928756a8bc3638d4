"""Every slot of a group is resolved, whatever an algorithm's `explore` does."""

import asyncio
import gc
import itertools
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from r3l.algorithms.registry import REGISTRY
from r3l.errors import (
    Conflict,
    EngineDead,
    EngineFailed,
    EpisodeError,
    LeaseLost,
    R3LError,
    RecordError,
    ReflectionError,
    UserError,
)
from r3l.records import GroupPlan, SlotResult
from r3l.rollout import exploration
from r3l.rollout import group as module
from r3l.rollout.attempt import Attempt
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import explore_group
from r3l.run.config import load
from tests.r3l.fakes import Corridor, ScriptedPolicy
from tests.r3l.rollout.fakes import TASK, always_right, learner_of_advice
from tests.r3l.rollout.fakes import exploration as explored_by

Explore = Callable[[Exploration], Awaitable[None]]
QUESTION = ("Think.", "Why at door 0 ?")


class Explored:
    """A group of four slots, explored by `explore`; what it stored, and the failures it told."""

    def __init__(self, explore: Explore, stall_s: float = 60.0, policy: Any = None) -> None:
        self.put: list[int] = []
        self.failures: list[EpisodeError] = []
        self.worlds: list[Corridor] = []
        self.x = Exploration(
            TASK,
            policy or ScriptedPolicy(always_right),
            self.make,
            GroupPlan(4),
            emit=self.emit,
            on_failure=self.failures.append,
        )
        self.explore, self.stall_s = explore, stall_s

    def make(self) -> Corridor:
        self.worlds.append(Corridor())
        return self.worlds[-1]

    async def emit(self, made: Any) -> Any:
        await asyncio.sleep(0)
        if isinstance(made, SlotResult):
            self.put.append(made.slot)
        return made

    async def run(self) -> list[SlotResult]:
        return await explore_group(self.explore, self.x, stall_s=self.stall_s)

    @property
    def causes(self) -> list[str]:
        """The cause of each slot; "" if it was played."""
        results = asyncio.run(self.run())
        assert [result.slot for result in results] == [0, 1, 2, 3] and sorted(self.put) == [
            0,
            1,
            2,
            3,
        ]
        assert all(world.closed == 1 for world in self.worlds)
        return [result.cause for result in results]


async def two(x: Exploration) -> None:
    await x.each([1, 3], x.play)


def test_results_come_in_the_order_of_the_slots() -> None:
    async def explore(x: Exploration) -> None:
        for slot in (3, 1, 0, 2):
            await x.play(slot)

    told = Explored(explore)
    assert told.causes == [""] * 4 and told.put == [3, 1, 0, 2] and not told.failures


def test_slots_that_are_left_out_fail_by_name() -> None:
    told = Explored(two)
    assert told.causes == ["not_explored", "", "not_explored", ""]
    (failure,) = told.failures
    assert "without a result for slot 0" in str(failure)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ValueError("no idea"), "explore_ValueError"),
        (ReflectionError("no", cause="not_json"), "explore_ReflectionError"),
        (EngineFailed("no", cause="engine_request"), "engine_request"),
        (asyncio.CancelledError(), "explore_cancelled"),
        (SystemExit(3), "explore_SystemExit"),
        (ExceptionGroup("several", [ExceptionGroup("", [KeyError("a")])]), "explore_KeyError"),
    ],
)
def test_an_explore_that_raises_fails_the_slots_that_it_had_not_resolved(
    error: BaseException, cause: str
) -> None:
    async def explore(x: Exploration) -> None:
        await two(x)
        raise error

    told = Explored(explore)
    assert told.causes == [cause, "", cause, ""]
    assert [failure.cause for failure in told.failures] == [cause]


def test_the_error_of_an_explore_is_told_with_its_line_and_traceback() -> None:
    async def explore(x: Exploration) -> None:
        {}["pivot"]

    told = Explored(explore)
    assert told.causes == ["explore_KeyError"] * 4
    (failure,) = told.failures
    assert f"explore raised KeyError: 'pivot' ({__file__}:" in str(failure)
    assert '{}["pivot"]' in failure.facts["traceback"]


def test_an_explore_that_raises_in_one_of_its_tasks_ends_the_others() -> None:
    async def explore(x: Exploration) -> None:
        async def work(slot: int) -> None:
            if slot == 2:
                await x.play(slot)
                sys.exit("enough")
            while True:
                await asyncio.sleep(0.01)

        await x.each(range(4), work)

    told = Explored(explore)
    assert told.causes == ["explore_SystemExit"] * 2 + [""] + ["explore_SystemExit"]


@pytest.mark.parametrize(
    "explore",
    [lambda x: None, lambda x: x.play, lambda: None],
    ids=["no coroutine", "a method", "no argument"],
)
def test_an_explore_that_is_no_coroutine_function_fails_its_slots(explore: Any) -> None:
    assert Explored(explore).causes == ["explore_TypeError"] * 4


def test_an_explore_that_asks_for_what_its_plan_lacks_fails_by_name() -> None:
    async def explore(x: Exploration) -> None:
        await x.play(0)
        await x.play(4)

    told = Explored(explore)
    assert told.causes == ["", "bad_plan", "bad_plan", "bad_plan"]
    assert "slot 4: the plan of this group has slots 0 to 3" in str(told.failures[0])


def test_an_explore_that_waits_for_nothing_is_ended() -> None:
    async def explore(x: Exploration) -> None:
        await two(x)
        await asyncio.Event().wait()

    told = Explored(explore, stall_s=0.1)
    assert told.causes == ["explore_stalled", "", "explore_stalled", ""]
    assert "slots [0, 2] are open" in str(told.failures[0])


def test_an_explore_that_repeats_a_verb_for_ever_is_ended() -> None:
    async def explore(x: Exploration) -> None:
        while True:
            await x.play(0)

    assert Explored(explore, stall_s=0.1).causes == ["", *["explore_stalled"] * 3]


def test_an_explore_that_waits_for_the_engine_is_not_stalled() -> None:
    class Slow(ScriptedPolicy):
        async def sample(self, *asked: Any) -> Any:
            await asyncio.sleep(0.1)
            return await super().sample(*asked)

    async def explore(x: Exploration) -> None:
        await x.each(range(4), x.play)
        await x.ask("why", QUESTION)

    assert Explored(explore, stall_s=0.05, policy=Slow(always_right)).causes == [""] * 4


def test_an_explore_that_survives_its_end_can_store_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "ENDING_S", 0.1)
    tries: list[str] = []

    async def explore(x: Exploration) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                tries.append("cancelled")
            try:
                await x.play(0)
            except R3LError as error:
                tries.append(str(error))
                return

    async def scenario() -> None:
        told = Explored(explore, stall_s=0.1)
        await told.run()
        await asyncio.sleep(0.1)
        assert [result.cause for result in told.x.results.values()] == ["explore_stalled"] * 4
        assert sorted(told.put) == [0, 1, 2, 3] and not told.worlds

    asyncio.run(scenario())
    assert tries[0] == "cancelled" and "has ended" in tries[1]


def test_what_an_explore_leaves_behind_is_ended() -> None:
    """Its tasks play on after it has ended, or raised."""
    tasks = []

    async def explore(x: Exploration) -> None:
        tasks.extend(asyncio.ensure_future(x.play(slot)) for slot in (0, 1))
        await x.play(2)
        tasks.append(asyncio.ensure_future(x.play(3)))
        await asyncio.sleep(0)
        await asyncio.gather(*tasks[:2])

    told = Explored(explore)
    assert told.causes == ["", "", "", "not_explored"]
    assert tasks[2].cancelled()


def test_what_is_played_when_an_explore_raises_is_not_stored_twice() -> None:
    async def explore(x: Exploration) -> None:
        async def broken() -> None:
            await x.play(0)
            raise ValueError

        class Slow(ScriptedPolicy):
            async def sample(self, *asked: Any) -> Any:
                await asyncio.sleep(0.05)
                return await super().sample(*asked)

        slow = Slow(always_right)
        x.policy, fast = slow, x.policy
        late = asyncio.ensure_future(x.play(1))
        await asyncio.sleep(0.01)
        x.policy = fast
        await asyncio.gather(broken(), late)

    told = Explored(explore)
    assert told.causes == ["", *["explore_ValueError"] * 3]


class Dying(ScriptedPolicy):
    """Raises `error` from the fourth response on."""

    def __init__(self, error: Exception) -> None:
        super().__init__(always_right)
        self.error = error

    async def sample(self, *asked: Any) -> Any:
        if len(self.prompts) >= 3:
            raise self.error
        return await super().sample(*asked)


@pytest.mark.parametrize("error", [EngineDead("gone"), LeaseLost("another's"), ValueError("a bug")])
def test_an_error_that_is_no_attempts_ends_the_group_even_if_explore_catches_it(
    error: Exception,
) -> None:
    async def catches(x: Exploration) -> None:
        for slot in range(4):
            with suppress(Exception):
                await x.play(slot)

    async def raises(x: Exploration) -> None:
        await x.each(range(4), x.play)

    async def turns(x: Exploration) -> None:
        try:
            await raises(x)
        except Exception:
            raise KeyError("something else") from None

    for explore in (catches, raises, turns):
        told = Explored(explore, policy=Dying(error))
        with pytest.raises(type(error)):
            asyncio.run(told.run())
        assert not any(r.cause for r in told.x.results.values()) and not told.failures


async def plays(x: Exploration) -> None:
    await x.each(range(4), x.play)


FAULTS = [
    RecordError("a step's newest version is older"),
    ValueError("half a pair"),
    IndexError("list index out of range"),
    OverflowError("too large to convert to C long"),
    msgspec.ValidationError("Expected `int`"),
    UserError("the chat template refuses messages"),
    MemoryError(),
]


@pytest.mark.parametrize("error", FAULTS, ids=lambda error: type(error).__name__)
def test_an_attempt_that_cannot_be_recorded_fails_its_slot_alone(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Attempt.trajectory

    def trajectory(attempt: Attempt, slot: int, **of: Any) -> Any:
        if slot == 2:
            raise error
        return recorded(attempt, slot, **of)

    monkeypatch.setattr(Attempt, "trajectory", trajectory)
    told = Explored(plays)
    cause = f"record_{type(error).__name__}"
    assert told.causes == ["", "", cause, ""] and told.x.broken is None
    (failure,) = told.failures
    assert failure.cause == cause and "Traceback" in failure.facts["traceback"]
    assert str(failure).startswith(f"it cannot be recorded: {type(error).__name__}: {error}")


def test_an_observation_that_the_chat_template_refuses_fails_its_slot_alone() -> None:
    policy = ScriptedPolicy(always_right)

    def turn(role: str, text: str) -> Any:
        raise UserError("the chat template refuses it")

    policy.chat.turn = turn  # type: ignore[method-assign]
    assert Explored(plays, policy=policy).causes == ["record_UserError"] * 4


def test_an_answer_that_cannot_be_recorded_is_raised_to_explore_as_an_episodes_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def record(*_: Any, **__: Any) -> Any:
        raise RecordError("start 9: must be from 0 to 3")

    async def explore(x: Exploration) -> None:
        await x.play(0)
        await x.ask("why", QUESTION)

    monkeypatch.setattr(exploration, "ReflectionRecord", record)
    told = Explored(explore)
    assert told.causes == ["", *["record_RecordError"] * 3] and told.x.broken is None


def test_an_error_without_a_cause_or_a_text_still_names_the_failure() -> None:
    class Silent(Exception):
        def __str__(self) -> str:
            raise TypeError

    async def explore(x: Exploration) -> None:
        raise Silent

    async def nameless(x: Exploration) -> None:
        raise EngineFailed("no", cause="")

    assert Explored(explore).causes == ["explore_Silent"] * 4
    assert Explored(nameless).causes == ["EngineFailed"] * 4


@pytest.mark.parametrize("name", sorted(REGISTRY))
@pytest.mark.parametrize("every", [1, 2])
def test_every_algorithm_survives_attempts_that_cannot_be_recorded(
    name: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, or each second one, and so their reflections and retries."""
    recorded, made = Attempt.trajectory, itertools.count()

    def trajectory(attempt: Attempt, slot: int, **of: Any) -> Any:
        if next(made) % every == 0:
            raise RecordError("pivot 3: must be from -1 to 1")
        return recorded(attempt, slot, **of)

    monkeypatch.setattr(Attempt, "trajectory", trajectory)
    config = load(None, [f"algorithm={name}", "algorithm.group_size=4"])
    x = explored_by(learner_of_advice(), config)
    results = asyncio.run(explore_group(config.algorithm.explore, x))
    assert [result.slot for result in results] == list(range(x.plan.slots))
    failed = [result.cause for result in results if result.status == "failed"]
    assert "record_RecordError" in failed and x.broken is None


def test_a_dead_engine_is_told_before_a_lost_lease() -> None:
    async def explore(x: Exploration) -> None:
        await x.each(range(4), x.play)

    told = Explored(explore, policy=Dying(EngineDead("gone")))

    async def lost(made: Any) -> Any:
        await asyncio.sleep(0)
        raise Conflict("another's")

    async def scenario() -> None:
        told.x.emit = lost
        told.x.results[2] = SlotResult(2, "skipped")
        told.x.broken = LeaseLost("another's")
        await told.run()

    with pytest.raises(EngineDead):
        asyncio.run(scenario())


def test_a_cancelled_group_ends_its_explore_and_closes_its_environments() -> None:
    class Hanging(ScriptedPolicy):
        async def sample(self, *asked: Any) -> Any:
            await asyncio.Event().wait()

    async def explore(x: Exploration) -> None:
        await x.each(range(4), x.play)

    async def scenario() -> None:
        told = Explored(explore, policy=Hanging(always_right))
        exploring = asyncio.create_task(told.run())
        while told.x.running < 4:
            await asyncio.sleep(0)
        exploring.cancel()
        began = time.monotonic()
        with pytest.raises(asyncio.CancelledError):
            await exploring
        assert time.monotonic() - began < 5 and not told.put
        assert [world.closed for world in told.worlds] == [1] * 4
        assert len(asyncio.all_tasks()) == 1

    asyncio.run(scenario())


def test_the_error_of_an_explore_that_is_cancelled_is_retrieved() -> None:
    """A verb of it refuses to begin, before its own cancellation has arrived."""
    unread: list[Any] = []

    async def explore(x: Exploration) -> None:
        async def knock(slot: int) -> None:
            while True:
                await x.fail(slot, "again")

        await x.each(range(4), knock)

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unread.append(context))
        exploring = asyncio.create_task(Explored(explore).run())
        for _ in range(9):
            await asyncio.sleep(0)
        exploring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await exploring
        del exploring

    asyncio.run(scenario())
    gc.collect()
    assert not unread
