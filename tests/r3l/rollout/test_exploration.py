"""The verbs of an exploration: each is durable, and does its work once."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace as changed
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from r3l import codec
from r3l.errors import EngineFailed, PlanError
from r3l.records import (
    AttemptKey,
    GroupPlan,
    Origin,
    Recalled,
    ReflectionRecord,
    SlotResult,
    Trajectory,
)
from r3l.rollout.env_interface import Retry
from r3l.rollout.exploration import Decoding, Exploration, Verdict
from r3l.rollout.partial import Progress
from tests.r3l.fakes import Corridor, ScriptedPolicy
from tests.r3l.rollout.fakes import TASK, Faulty, always_right, explore, learner_of_advice

QUESTION = ("Think.", "Why at door 0 ?")


def group(slots: int = 2, policy: Any = None, **more: Any) -> Exploration:
    make = more.pop("make_env", Corridor)
    plan = more.pop("plan", None) or GroupPlan(slots)
    return Exploration(TASK, policy or learner_of_advice(), make, plan, **more)


def run(work: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await work()

    return asyncio.run(main())


def text(x: Exploration, ids: Any) -> str:
    return x.policy.chat.tokenizer.decode(ids)


def test_a_context_is_read_below_the_system_prompt_and_left_out_of_the_record() -> None:
    x = group(policy=ScriptedPolicy(always_right))
    told = run(lambda: x.play(0, context="Mind the step."))
    plain = run(lambda: x.play(1))
    assert told.token_ids.tolist() == plain.token_ids.tolist() and plain.shown is None
    ids, mask = told.as_shown()
    assert text(x, ids).startswith("<|im_start|>system\nAnswer.\nMind the step.<|im_end|>")
    assert text(x, ids[mask]) == text(x, told.token_ids[told.response_mask])
    assert (told.of, told.pivot, told.role) == (-1, -1, "base")
    for k, (start, _) in enumerate(told.step_spans.tolist()):
        shift = len(ids) - len(told.token_ids)
        assert x.policy.prompts[k] == text(x, ids[: start + shift])


def stored(policy: Any = None) -> Recalled:
    """An attempt of slot 3 of the group g9."""
    played = run(lambda: group(policy=policy).play(0))
    return Recalled("", "g9", replace(played, slot=3))


def test_an_attempt_begins_at_a_step_of_a_stored_one() -> None:
    """Its prefix is that of the stored attempt; its reward includes what the prefix earned."""
    recalled = stored()
    start = Origin("g9", 3, 1)
    x = group(policy=ScriptedPolicy(always_right), handed=[recalled])
    made = run(lambda: x.play(0, start=start))
    base = recalled.trajectory
    assert (made.of, made.pivot, made.origin, made.role) == (-1, 1, start, "base")
    assert base.actions == ("a", "x", "c") and made.actions == ("a", "b", "c")
    end = base.step_spans[0, 1]
    assert made.token_ids[:end].tolist() == base.token_ids[:end].tolist()
    assert made.generated_tokens == 2 * len("b<") and made.reward == 1.0
    assert codec.encode(codec.decode(Trajectory, codec.encode(made))) == codec.encode(made)

    guided = group(handed=[recalled])
    again = run(lambda: guided.play(1, start=start, context="say b"))
    assert again.actions == ("a", "b", "c") and "say b" in text(guided, again.as_shown()[0])
    assert "say b" not in text(guided, again.token_ids)


def test_a_start_must_be_handed_out_and_one_that_is_gone_fails_its_slot_alone() -> None:
    x = group(handed=[stored()], plan=GroupPlan(2, "", (AttemptKey("g8", 0),)))
    for start, why in ((Origin("g9", 0, 0), "not handed out"), (Origin("g9", 3, 3), "0 to 2")):
        with pytest.raises(PlanError, match=why):
            run(partial(x.play, 0, start=start))
    assert run(lambda: x.play(0, start=Origin("g8", 0, 1))) is None
    assert x.results[0].cause == "start_gone" and run(lambda: x.play(1)) is not None
    assert x.broken is None


def test_a_world_with_another_system_prompt_is_not_the_one_that_was_recorded() -> None:
    def make() -> Corridor:
        world = Corridor()
        world.spec = changed(world.spec, system_prompt="Answer well.")
        return world

    told: list[str] = []
    x = group(handed=[stored()], make_env=make, on_failure=lambda error: told.append(str(error)))
    assert run(lambda: x.play(0, start=Origin("g9", 3, 1))) is None
    assert x.results[0].cause == "replay_diverged" and "system prompt differs" in told[0]


@pytest.mark.parametrize("snapshots", [False, True])
def test_an_attempt_is_retried_several_times_and_its_retries_too(snapshots: bool) -> None:
    worlds: list[Corridor] = []

    def make() -> Corridor:
        worlds.append(Corridor("abcd", snapshots=snapshots))
        return worlds[-1]

    policy = ScriptedPolicy(lambda p: "d" if "door 3" in p.rpartition("user")[2] else "a")
    x = group(5, policy, make_env=make)

    async def work() -> None:
        await x.play(0)
        await asyncio.gather(x.retry(1, of=0, pivot=1), x.retry(2, of=0, pivot=3))
        await x.retry(3, of=2, pivot=2)
        await x.retry(4, of=3, pivot=0)

    run(work)
    pivots = [(made.of, made.pivot) for made in x.attempts]
    assert pivots == [(-1, -1), (0, 1), (0, 3), (2, 2), (3, 0)]
    played = 4 + 3 + 1 + 2 + 4
    assert sum(world.steps_taken for world in worlds) == played + (0 if snapshots else 1 + 3 + 2)
    assert len(policy.prompts) == played


def test_what_cannot_be_retried_is_refused() -> None:
    x = group(3)
    with pytest.raises(PlanError, match="slot 0: it holds no attempt"):
        run(lambda: x.retry(1, of=0, pivot=0))
    run(lambda: x.play(0))
    for pivot in (-1, 3):
        with pytest.raises(PlanError, match="has steps 0 to 2"):
            run(partial(x.retry, 1, of=0, pivot=pivot))
    with pytest.raises(PlanError, match="'say b': no answer of this group"):
        run(lambda: x.retry(1, of=0, pivot=1, reflection="say b"))
    run(lambda: x.skip(1, "not_needed", of=0))
    with pytest.raises(PlanError, match="slot 1: it holds no attempt"):
        run(lambda: x.retry(2, of=1, pivot=0))
    assert x.open == [2] and not x.running


@pytest.mark.parametrize(
    ("verb", "rule"),
    [
        (lambda x: x.play(2), "slots 0 to 1"),
        (lambda x: x.play(-1), "slots 0 to 1"),
        (lambda x: x.retry(0, of=2, pivot=0), "slots 0 to 1"),
        (lambda x: x.skip(2, "late"), "slots 0 to 1"),
        (lambda x: x.fail(0, "late", of=-2), "slots 0 to 1"),
        (lambda x: x.play(0, context=7), "context is int"),
        (lambda x: x.play(0, context="\ud800"), "half a surrogate pair"),
        (lambda x: x.retry(0, of=1, pivot=0, guidance=None), "guidance is NoneType"),
        (lambda x: x.ask("why", ("a", b"b")), "question is bytes"),
        (lambda x: x.ask("why", QUESTION, schema={"type": print}), "schema holds"),
        (lambda x: x.ask("why", QUESTION, of=2), "slots 0 to 1"),
    ],
)
def test_a_verb_refuses_what_its_group_cannot_have(verb: Any, rule: str) -> None:
    x = group()
    with pytest.raises(PlanError, match=rule):
        run(lambda: verb(x))
    assert x.open == [0, 1] and x.broken is None and not x.policy.prompts


def test_numbers_of_numpy_are_slots_and_steps() -> None:
    one, other = (group(seed=3) for _ in range(2))
    for x, kind in ((one, int), (other, np.int64)):
        run(partial(x.play, kind(0)))
        run(partial(x.retry, kind(1), of=kind(0), pivot=kind(1)))
        assert type(x.results[1].of) is int and type(x.attempts[1].pivot) is int
    assert one.policy.asked == other.policy.asked


def test_an_answer_is_stored_once_under_its_name_with_what_was_read_in_it() -> None:
    policy, emitted = ScriptedPolicy(lambda prompt: "because"), []

    async def emit(made: ReflectionRecord) -> ReflectionRecord:
        emitted.append(made)
        return made

    def read(answer: str, complete: bool) -> Verdict:
        assert (answer, complete) == ("because", True)
        return Verdict(outcome="failure", pivot=1)

    x = group(policy=policy, emit=emit, decoding=Decoding(reflect_temperature=0.3))

    async def work() -> list[ReflectionRecord]:
        asked = [x.ask("why", QUESTION, of=1, schema={"type": "string"}, read=read)]
        asked += [x.ask("why", QUESTION) for _ in range(2)]
        return list(await asyncio.gather(*asked))

    first, *others = run(work)
    assert others == [first, first] and emitted == [first] and len(policy.prompts) == 1
    assert (first.name, first.of, first.outcome, first.pivot) == ("why", 1, "failure", 1)
    assert (first.temperature, policy.asked[0].json_schema) == (0.3, {"type": "string"})
    asked = text(x, first.token_ids[: first.start])
    assert asked == policy.prompts[0] and "Think." in asked and "Why at" in asked
    assert text(x, first.token_ids[first.response_mask]) == "because<|im_end|>"
    assert codec.encode(codec.decode(ReflectionRecord, codec.encode(first))) == codec.encode(first)

    again = group(reflections={"why": first})
    assert run(lambda: again.ask("why", QUESTION)) is first and not again.policy.prompts


def test_verbs_on_one_slot_take_turns_and_the_first_one_does_the_work() -> None:
    x = group()

    async def work() -> list[Any]:
        return list(await asyncio.gather(*(x.play(0) for _ in range(3)), x.skip(0, "late")))

    first, second, third, _ = run(work)
    assert first is second is third is x.attempt(0)
    assert len(x.policy.prompts) == 3  # the doors of one attempt


def test_what_is_stored_is_not_played_again() -> None:
    base = explore(learner_of_advice())[0]
    policy, emitted = learner_of_advice(), list[int]()

    async def emit(made: Any) -> Any:
        if isinstance(made, SlotResult):
            emitted.append(made.slot)
        return made

    _, retry = explore(policy, results={0: base}, emit=emit)
    assert emitted == [1]
    assert retry.trajectory is not None and retry.trajectory.reward == 1.0


def test_seeds_are_fixed_by_the_group_and_differ_between_its_parts() -> None:
    one, two, other = learner_of_advice(), learner_of_advice(), learner_of_advice()
    explore(one, seed=1)
    explore(two, seed=1)
    explore(other, seed=2)
    seeds = sorted(p.seed for p in one.asked if p.seed is not None)
    assert seeds == sorted(p.seed for p in two.asked if p.seed is not None)
    assert len(set(seeds)) == len(one.asked)
    assert not set(seeds) & {p.seed for p in other.asked}
    numbers = [group(seed=seed).random.random() for seed in (1, 1, 2)]
    assert numbers[0] == numbers[1] != numbers[2]


def test_a_slot_fails_if_its_environment_cannot_start_but_not_if_it_cannot_close() -> None:
    def make() -> Corridor:
        raise OSError("no display")

    failures: list[Any] = []
    base, retry = explore(learner_of_advice(), make_env=make, on_failure=failures.append)
    assert (base.cause, retry.cause) == ("environment_OSError", "no_base")
    assert [error.cause for error in failures] == ["environment_OSError"]
    make = partial(Faulty, "close", OSError("still busy"))
    assert explore(learner_of_advice(), make_env=make)[0].status == "done"


def test_a_failed_request_fails_a_slot_and_is_raised_by_a_question() -> None:
    policy = learner_of_advice()

    async def refused(*_: Any) -> Any:
        raise EngineFailed("no", cause="engine_request")

    policy.sample = refused  # type: ignore[method-assign]
    failures: list[Any] = []
    x = group(policy=policy, on_failure=failures.append)
    assert run(lambda: x.play(0)) is None and x.results[0].cause == "engine_request"
    with pytest.raises(EngineFailed):
        run(lambda: x.ask("why", QUESTION))
    assert not x.reflections and len(failures) == 1 and x.broken is None


def test_attempts_questions_and_requests_in_progress_are_counted() -> None:
    counts: list[int] = []
    x = group(3)

    async def emit(made: Any) -> Any:
        counts.append(x.running)
        return made

    x.emit = emit

    async def work() -> None:
        await x.each(range(3), x.play)
        assert (x.running, x.widest) == (0, 3)
        await x.ask("why", QUESTION)

    run(work)
    assert max(counts) == 3 and min(counts) == 1 and x.running == 0


def test_an_ended_exploration_refuses_verbs() -> None:
    x = group()
    x.ended = True
    for verb in (x.play(0), x.skip(0, "late"), x.ask("why", QUESTION)):
        with pytest.raises(PlanError, match="has ended"):
            asyncio.run(verb)  # type: ignore[arg-type]


class Agent(Corridor):
    """An environment whose attempts an agent plays; here it copies one."""

    given: Any
    attempt: Trajectory

    async def play_with_agent(
        self, task: Any, slot: int, params: Any, retry: Retry | None = None, **more: Any
    ) -> Trajectory:
        Agent.given = {"retry": retry, "seed": params(0).seed, **more}
        return replace(self.attempt, slot=slot, **({} if retry is None else retry.fields))


def test_an_agent_gets_what_it_retries_and_continues_only_its_own_attempts() -> None:
    base = stored()
    Agent.attempt = replace(base.trajectory, slot=0)
    left = SlotResult(0, "done", trajectory=Agent.attempt)
    x = group(
        4,
        make_env=Agent,
        seed=1,
        handed=[base],
        progress=Progress([left, *(changed_slot(left, k) for k in (1, 2))]),
    )
    run(lambda: x.play(0, retried=True))
    run(lambda: x.ask("why", QUESTION, of=0))
    seeds = {Agent.given["seed"]}
    assert Agent.given["left"] is Agent.attempt and Agent.given["retried"]
    assert Agent.given["retry"] is None and Agent.given["offer"] is not None
    retry = run(lambda: x.retry(1, of=0, pivot=2, guidance="left", reflection="why"))
    seeds.add(Agent.given["seed"])
    assert Agent.given["retry"] == Retry(x.attempt(0), 2, "left", 0, reflection="why")
    assert Agent.given["left"] is None and Agent.given["offer"] is None
    assert (retry.of, retry.pivot, retry.reflection) == (0, 2, "why")
    start = Origin("g9", 3, 1)
    run(lambda: x.play(2, start=start, context="go"))
    assert Agent.given["retry"] == Retry(base.trajectory, 1, "go", origin=start)
    assert run(lambda: x.play(3, context="go")) is None
    assert x.results[3].cause == "agent_context"
    assert len(seeds) == 2


def changed_slot(result: SlotResult, slot: int) -> SlotResult:
    attempt = result.trajectory
    assert attempt is not None
    return SlotResult(slot, "done", trajectory=replace(attempt, slot=slot))


def test_the_environments_prompts_are_found_without_an_attempt() -> None:
    class Own(Corridor):
        def __init__(self) -> None:
            super().__init__()
            self.spec = changed(self.spec, prompts={"guidance": "Hear: {improvement_suggestion}"})

    x = group(make_env=Own)
    prompts = run(x.prompts)
    assert prompts.texts["guidance"].startswith("Hear:") and x.running == 0
