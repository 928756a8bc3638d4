"""A retry from the tape: the prefix is the base attempt's, token for token, or it is refused."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from actors.agents.agent_attempt import agents_served
from actors.agents.tape_reader import (
    recorded_calls,
    retry_player,
)
from actors.gateway.call_tree import Node
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l import codec
from r3l.algorithms.batch import Batch
from r3l.algorithms.credit import further_masks, lengths
from r3l.algorithms.rows import POLICY
from r3l.records import (
    AttemptKey,
    Group,
    GroupPlan,
    Origin,
    Recalled,
    ReflectionRecord,
    SlotResult,
    Task,
    Trajectory,
    done,
)
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import Explore, explore_group
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import RunConfig, load
from r3l.views.attempt_view import text
from r3l.views.tape import TapedCall, messages_of, read_tape, write_tape
from tests.r3l.fakes import ScriptedPolicy
from tests.r3l.rollout.fakes import exploration

AGENT = """
import json, os, pathlib, random, sys, time
sys.path.insert(0, {folder!r})
from stdlib_agent import ask


def play(task):
    state = pathlib.Path({state!r})
    attempt = len(list(state.iterdir()))
    (state / str(attempt)).touch()
    messages = [{{"role": "system", "content": "Walk."}}, {{"role": "user", "content": "door 0"}}]
    walked = []
    for step in range(task["steps"]):
        reply = ask(messages)
        walked.append(reply["content"])
        seen = f"door {{step + 1}} after {{walked[-1]}}"
        mood = task["mood"]
        if mood == "clock" and step == 1:
            seen += f" at {{time.time_ns()}}"
        if mood == "fewer" and attempt and step == 0:
            break
        if mood == "title" and step == 0:
            ask([{{"role": "system", "content": "Give a title."}}, messages[1]])
        messages += [reply, {{"role": "user", "content": seen}}]
    return {{"reward": float(walked[-1] == "right"), "feedback": "the end"}}
"""
ADVICE = "go right"
TASK_OF_ROWS = Task("t/1", "agent", 1)
EXAMPLES = Path(__file__).parents[3] / "examples" / "agents"


def reflection(pivot: int) -> str:
    fields = {
        "trajectory_summary": "s",
        "root_cause_analysis": "r",
        "trajectory_outcome": "failure",
        "improvement_suggestion": ADVICE,
        "retry_from_step": pivot,
    }
    return json.dumps(fields)


def answers(pivot: int) -> Callable[[str], str]:
    """A policy that goes left until it is advised, then right; it reflects with `pivot`."""

    def reply(text: str) -> str:
        if "You review" in text:
            return reflection(pivot)
        return "right" if ADVICE in text else "left"

    return reply


def config_of(folder: Path, mood: str = "", steps: int = 4, *more: str) -> RunConfig:
    state = folder / "state"
    state.mkdir(exist_ok=True)
    here = str(Path(__file__).parent)
    (folder / "walker.py").write_text(AGENT.format(folder=here, state=str(state)))
    (folder / "tasks.jsonl").write_text(json.dumps({"id": 1, "mood": mood, "steps": steps}))
    options = {"command": f"{folder}/walker.py:play", "tasks": f"{folder}/tasks.jsonl"}
    return load(None, ["env=agent", f"env.options={json.dumps(options)}", *more])


def explored(
    config: RunConfig,
    policy: ScriptedPolicy,
    times: int = 1,
    explore: Explore | None = None,
    slots: int = 2,
    **more: Any,
) -> tuple[list[list[SlotResult]], ActorMetrics, list[str]]:
    """Explores groups, by default of one attempt and its retry, one after the other in one
    actor."""
    metrics, failures = ActorMetrics(), list[str]()

    async def explore_all() -> list[list[SlotResult]]:
        (task,) = tasks_of_all(config.env, "train", 1)
        async with (
            environments_of_all(config.env, 1) as made,
            agents_served(made, config, policy, metrics) as make_env,
        ):
            groups = []
            for _ in range(times):
                plan = {"plan": GroupPlan(slots)} | more
                x = exploration(policy, config, task, make_env, **plan)
                x.results = dict(x.results)
                x.on_failure = lambda error: failures.append(str(error))
                groups.append(await explore_group(explore or config.algorithm.explore, x))
            return groups

    return asyncio.run(explore_all()), metrics, failures


async def both(x: Exploration) -> None:
    await x.each(range(2), x.play)


def attempts(results: list[SlotResult]) -> tuple[Trajectory, Trajectory]:
    base, retry = (result.trajectory for result in results)
    assert base is not None and retry is not None
    return base, retry


@pytest.mark.parametrize("pivot", [0, 1, 3])
def test_a_retry_repeats_the_calls_before_its_pivot_without_sampling(
    tmp_path: Path, pivot: int
) -> None:
    policy = ScriptedPolicy(answers(pivot))
    (results,), metrics, _ = explored(config_of(tmp_path), policy)
    base, retry = attempts(results)
    assert (base.reward, retry.reward) == (0.0, 1.0)
    assert retry.actions == ("left",) * pivot + ("right",) * (4 - pivot)
    assert (retry.role, retry.of, retry.pivot) == ("distilled", 0, pivot)
    sampled = [text for text in policy.prompts if "You review" not in text]
    assert len(sampled) == 4 + 4 - pivot and metrics.agent["taped"] == pivot
    assert all(ADVICE in text for text in sampled[4:])
    end = int(base.step_spans[pivot - 1, 1]) if pivot else 0
    for name in ("token_ids", "logprobs"):
        assert np.array_equal(getattr(base, name)[:end], getattr(retry, name)[:end])


def test_the_guidance_is_shown_and_neither_recorded_nor_told_to_the_agent(tmp_path: Path) -> None:
    policy = ScriptedPolicy(answers(2))
    (results,), *_ = explored(config_of(tmp_path), policy)
    _, retry = attempts(results)
    text = policy.chat.tokenizer.decode(retry.token_ids.tolist())
    assert ADVICE not in text + str(read_tape(retry.extra.tape))
    ids, mask = retry.as_shown()
    shown = policy.chat.tokenizer.decode(ids.tolist())
    assert shown.count(ADVICE) == 1 and shown.index(ADVICE) > shown.index("door 2")
    assert policy.chat.text(ids[mask].tolist()) == "rightright"
    assert shown[: -len("right<|im_end|>")] == policy.prompts[-1]


def test_a_retry_whose_guidance_is_ignored_is_no_correction(tmp_path: Path) -> None:
    def deaf(text: str) -> str:
        return reflection(2) if "You review" in text else "left"

    (results,), *_ = explored(config_of(tmp_path), ScriptedPolicy(deaf))
    base, retry = attempts(results)
    assert retry.actions == base.actions and retry.reward == base.reward == 0.0


@pytest.mark.parametrize(
    ("mood", "said"),
    [("clock", "message 5 has 'user: door 2 after left at "), ("fewer", "before it made the")],
)
def test_a_world_that_answers_differently_is_refused_with_the_difference(
    tmp_path: Path, mood: str, said: str
) -> None:
    (results,), metrics, (failure,) = explored(
        config_of(tmp_path, mood), ScriptedPolicy(answers(3))
    )
    assert (results[1].status, results[1].cause) == ("failed", "replay_diverged")
    assert said in failure and metrics.agent["diverged"] == 1


def test_what_may_differ_is_ignored(tmp_path: Path) -> None:
    config = config_of(tmp_path, "clock", 4, r"actor.agent.ignore=['at \d+']")
    (results,), *_ = explored(config, ScriptedPolicy(answers(3)))
    assert attempts(results)[1].pivot == 3


def test_a_divergence_before_the_pivot_alone_counts(tmp_path: Path) -> None:
    (results,), *_ = explored(config_of(tmp_path, "clock"), ScriptedPolicy(answers(1)))
    assert attempts(results)[1].reward == 1.0


def test_retries_restart_after_too_many_divergences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = config_of(tmp_path, "clock", 4, "actor.agent.max_divergences=2")
    groups, metrics, _ = explored(config, policy := ScriptedPolicy(answers(3)), times=4)
    assert [group[1].status for group in groups] == ["failed", "failed", "done", "done"]
    _, retry = attempts(groups[2])
    assert retry.pivot == 0 and retry.actions == ("right",) * 4 and metrics.agent["restarts"] == 2
    shown = next(text for text in policy.prompts if "system\nWalk.\n" in text)
    assert ADVICE in shown.split("door")[0]
    assert capsys.readouterr().err.count("max_divergences") == 1


def test_a_call_of_another_kind_is_repeated_from_its_text(tmp_path: Path) -> None:
    policy = ScriptedPolicy(answers(2))
    (results,), metrics, _ = explored(config_of(tmp_path, "title"), policy)
    _, retry = attempts(results)
    assert metrics.agent["taped"] == 3 and retry.actions == ("left", "left", "right", "right")
    assert sum("Give a title" in text for text in policy.prompts) == 1
    assert [call.trained for call in read_tape(retry.extra.tape)] == [False] * 3 + [True] * 2


def test_further_conversations_are_trained_from_the_pivot(tmp_path: Path) -> None:
    config = config_of(tmp_path, "title", 4, "actor.agent.train=all")
    (results,), *_ = explored(config, ScriptedPolicy(answers(1)))
    base, retry = attempts(results)
    (title,) = base.extra.segments
    assert title.after.tolist() == [1] and not retry.extra.segments
    masks = [base.responses_from(first) for first in range(3)]
    trained = [further_masks(base, mask)[0].any() for mask in masks]
    assert trained == [True, False, False]  # the title was called before step 1
    assert len(lengths("token", [base], masks[2:])) == 1


def test_the_tape_of_another_version_of_the_agent_is_refused(tmp_path: Path) -> None:
    config, policy = config_of(tmp_path), ScriptedPolicy(answers(2))
    (results,), *_ = explored(config, policy)
    agent = tmp_path / "walker.py"
    agent.write_text(agent.read_text().replace('"door 0"', '"gate 0"'))
    (again,), _, (failure,) = explored(config, policy, results={0: results[0]})
    assert again[-1].cause == "replay_diverged"
    assert "'user: gate 0' instead of 'user: door 0'" in failure


def test_a_base_attempt_of_another_actor_is_retried_from_its_record(tmp_path: Path) -> None:
    config, policy = config_of(tmp_path), ScriptedPolicy(answers(2))
    (results,), *_ = explored(config, policy)
    (again,), *_ = explored(config, policy, results={0: results[0]})
    retry = again[-1].trajectory
    assert retry is not None and retry.actions == ("left", "left", "right", "right")
    damaged = replace(results[0].trajectory, extra=replace(results[0].trajectory.extra, tape=b"x"))  # type: ignore[type-var, union-attr]
    (again,), _, (failure,) = explored(config, policy, results={0: done(damaged)})
    assert again[-1].cause == "replay_diverged" and "cannot be read" in failure


def test_an_attempt_and_its_retries_are_retried_from_several_steps(tmp_path: Path) -> None:
    """Each follows its own attempt up to its pivot, token for token."""

    def reply(text: str) -> str:
        return next((word for word in ("up", "down") if f"go {word}" in text), "left")

    async def explore(x: Exploration) -> None:
        await x.play(0)
        for name in "ab":
            await x.ask(name, ("Think.", "Why?"), of=0)
        first = x.retry(1, of=0, pivot=1, guidance="go up", reflection="a")
        await asyncio.gather(first, x.retry(2, of=0, pivot=3, guidance="go down", reflection="b"))
        await x.retry(3, of=1, pivot=2, guidance="go down", reflection="a")
        await x.retry(4, of=3, pivot=0)

    (results,), metrics, failures = explored(
        config_of(tmp_path), ScriptedPolicy(reply), explore=explore, slots=5
    )
    made = [result.trajectory for result in results]
    assert all(made), failures
    assert [(t.of, t.pivot, t.reflection) for t in made if t] == [
        (-1, -1, ""), (0, 1, "a"), (0, 3, "b"), (1, 2, "a"), (3, 0, ""),
    ]  # fmt: skip
    assert [t.actions for t in made if t] == [
        ("left",) * 4,
        ("left", "up", "up", "up"),
        ("left", "left", "left", "down"),
        ("left", "up", "down", "down"),
        ("left",) * 4,
    ]
    assert metrics.agent["taped"] == 1 + 3 + 2 and metrics.agent["diverged"] == 0
    for t in made[1:]:
        assert t is not None and t.of >= 0
        base, end = made[t.of], int(t.step_spans[t.pivot, 0])
        assert base is not None and base.token_ids[:end].tolist() == t.token_ids[:end].tolist()
        assert (t.shown is None) == (t.pivot == 0)


def test_an_attempt_begins_at_a_step_of_a_stored_one_by_its_tape(tmp_path: Path) -> None:
    config, policy = config_of(tmp_path), ScriptedPolicy(answers(2))
    (results,), *_ = explored(config, policy)
    stored, start = replace(attempts(results)[0], slot=5), Origin("g9", 5, 3)

    async def explore(x: Exploration) -> None:
        await x.play(0, start=start, context=ADVICE)
        await x.play(1, start=start)

    (again,), metrics, failures = explored(
        config, policy, explore=explore, handed=[Recalled("", "g9", stored)]
    )
    assert not failures and metrics.agent["taped"] == 6
    begun, plain = attempts(again)
    assert begun.actions == ("left", "left", "left", "right") and plain.actions == ("left",) * 4
    for attempt in (begun, plain):
        assert (attempt.of, attempt.pivot, attempt.origin) == (-1, 3, start)
        end = stored.step_spans[2, 1]
        assert attempt.token_ids[:end].tolist() == stored.token_ids[:end].tolist()
    ids, mask = begun.as_shown()
    shown = policy.chat.tokenizer.decode(ids.tolist())
    assert shown.count(ADVICE) == 1 and policy.chat.text(ids[mask].tolist()) == "right"
    assert plain.shown is None


@pytest.mark.parametrize("name", ["exit", "pope"])  # without and with guidance
def test_the_attempts_of_a_group_begin_inside_a_stored_one_by_its_tape(
    name: str, tmp_path: Path
) -> None:
    config = config_of(tmp_path, "", 4, f"algorithm={name}")
    (results,), *_ = explored(config, ScriptedPolicy(answers(2)), explore=both)
    stored = Recalled("", "g9", replace(attempts(results)[0], slot=5))
    plan = GroupPlan(2, "guided 1", (AttemptKey("g9", 5),))
    (again,), metrics, failures = explored(
        config, ScriptedPolicy(answers(2)), handed=[stored], plan=plan, seed=1
    )
    made = attempts(again)
    (origin,) = {attempt.origin for attempt in made}
    assert not failures and origin is not None and 1 <= origin.step <= 3
    assert metrics.agent["taped"] == 2 * origin.step
    for attempt, mask in zip(made, config.algorithm.masks(made), strict=True):
        first = int(attempt.step_spans[origin.step, 0])
        assert attempt.pivot == origin.step and not mask[:first].any() and mask.any()
        assert (attempt.shown is not None) == (name == "pope")
    rows = config.algorithm.rows(Batch([Group("g1", TASK_OF_ROWS, plan, "drawn", tuple(again))]))
    assert not rows  # the rewards are equal


def test_an_attempt_inside_another_never_restarts_at_the_agents_first_call(
    tmp_path: Path,
) -> None:
    """Retries do, after max_divergences of theirs."""
    config = config_of(tmp_path, "clock", 4, "algorithm=exit", "actor.agent.max_divergences=2")
    (results,), *_ = explored(config, ScriptedPolicy(answers(2)), explore=both)
    stored, start = replace(attempts(results)[0], slot=5), Origin("g9", 5, 3)

    async def explore(x: Exploration) -> None:
        for slot in (0, 1):
            await x.play(slot, start=start)
        await x.play(2)
        for slot in (3, 4, 5):
            await x.retry(slot, of=2, pivot=3)
        await x.play(6, start=start)

    (made,), metrics, _ = explored(
        config,
        ScriptedPolicy(answers(2)),
        explore=explore,
        slots=7,
        handed=[Recalled("", "g9", stored)],
    )
    assert [r.cause for r in made] == [
        "replay_diverged", "replay_diverged", "", "replay_diverged", "replay_diverged", "",
        "replay_diverged",
    ]  # fmt: skip
    assert metrics.agent["diverged"] == 5 and metrics.agent["restarts"] == 1


def test_a_recorded_attempt_gives_back_every_call(tmp_path: Path) -> None:
    (results,), *_ = explored(
        config_of(tmp_path, "title", 4, "actor.agent.train=main"), ScriptedPolicy(answers(2))
    )
    base, _ = attempts(results)
    calls = recorded_calls(base)
    assert [each.sample is None for each in calls] == [False, True, False, False, False]
    for each in calls:
        if each.sample is not None:
            assert each.sample.logprobs == (-0.5,) * each.call.tokens
    assert [m["role"] for m in messages_of([c.call for c in calls], 4)].count("assistant") == 3
    assert write_tape([each.call for each in calls]) == base.extra.tape


def test_other_models_are_asked_from_the_pivot_on(tmp_path: Path) -> None:
    (results,), *_ = explored(config_of(tmp_path), ScriptedPolicy(answers(2)))
    base, _ = attempts(results)
    said = {"role": "assistant", "content": "yes"}
    judged = [
        TapedCall("chat", "d", -1, (), said, finish=finish, model="gpt-5", seconds=3.0)
        for finish in ("429", "stop", "stop")
    ]
    tape = write_tape([*read_tape(base.extra.tape), *judged])
    player = retry_player(replace(base, extra=replace(base.extra, tape=tape)), 2)
    assert player.take_passed("other") is None and player.take_passed("d") == judged[1]
    player.pivot_node = Node(None, (), "", ())
    assert player.take_passed("d") is None


def test_a_retried_attempt_is_stored_shown_and_trained_from_its_pivot(tmp_path: Path) -> None:
    config = config_of(tmp_path, "title", 4, "actor.agent.train=all")
    policy = ScriptedPolicy(answers(2))
    (results,), *_ = explored(config, policy)
    thought = ReflectionRecord(
        "reflect-0", reflection(2), np.zeros(1, np.int32), np.zeros(1, np.float32), of=0
    )
    group = Group("g", Task("1", "agent", 1), GroupPlan(2), "complete", tuple(results), (thought,))
    stored = codec.encode(group)
    again = codec.decode(Group, stored)
    assert codec.encode(again) == stored
    shown = text(again)
    assert "retry of 0 from step 2" in shown and f"improvement_suggestion: {ADVICE}" in shown
    assert shown.count("[user] door 2 after left") == 2
    rows = [row for row in config.algorithm.rows(Batch([again])) if row.loss == POLICY]
    trained = [policy.chat.text(row.token_ids[row.mask].tolist()) for row in rows]
    assert trained == ["leftleft", "rightright"]  # not the title, which came before the pivot
