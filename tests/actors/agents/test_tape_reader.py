"""A retry from the tape: the prefix is the base attempt's, token for token, or it is refused."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from actors.agents.agent_attempt import agents_served
from actors.agents.attempt_record import Train, trajectory
from actors.agents.tape_reader import (
    Replays,
    main_kind,
    player_of,
    recorded_calls,
)
from actors.gateway.call_tree import Node
from actors.gateway.chat_completions import AgentRequest, Refused
from actors.gateway.dialects import CHAT, MESSAGES, RESPONSES, Dialect, request_of
from actors.gateway.recorded_call import TapePlayer
from actors.gateway.session import Session
from envs.agents.agent_steps import Outcome
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from learner.step.batch import rows_of
from r3l import codec
from r3l.actor_metrics import ActorMetrics
from r3l.algorithms.credit import further_masks, lengths
from r3l.config import RunConfig, load
from r3l.errors import ReplayDiverged
from r3l.records import Group, GroupPlan, SlotResult, Task, Trajectory
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_interface import Retry
from r3l.rollout.group import explore_group
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.views.attempt_view import text
from r3l.views.tape import TapedCall, messages_of, read_tape, write_tape
from tests.actors.gateway.test_session import session_of
from tests.r3l.fakes import CHATML, CharTokenizer, ScriptedPolicy

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
        if "trajectory_summary" in text:
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
    config: RunConfig, policy: ScriptedPolicy, times: int = 1, accepted: Any = ()
) -> tuple[list[list[SlotResult]], ActorMetrics, list[str]]:
    """Explores groups of one attempt and its retry, one after the other, in one actor."""
    metrics, failures = ActorMetrics(), list[str]()

    async def explore() -> list[list[SlotResult]]:
        (task,) = tasks_of_all(config.env, "train", 1)
        async with (
            environments_of_all(config.env, 1) as made,
            agents_served(made, config, policy, metrics) as make_env,
        ):
            return [
                await explore_group(
                    task,
                    policy,
                    lambda: make_env(task),
                    config,
                    plan=GroupPlan(1, 1),
                    accepted=accepted,
                    on_failure=lambda error: failures.append(str(error)),
                )
                for _ in range(times)
            ]

    return asyncio.run(explore()), metrics, failures


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
    assert (retry.role, retry.parent, retry.pivot) == ("distilled", 0, pivot)
    sampled = [text for text in policy.prompts if "trajectory_summary" not in text]
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
    sample = next(each for each in results[1].aux if each.kind == "retry")
    shown = policy.chat.tokenizer.decode(sample.token_ids.tolist())
    assert shown.count(ADVICE) == 1 and shown.index(ADVICE) > shown.index("door 2")
    trained = sample.token_ids[sample.response_mask].tolist()
    assert policy.chat.text(trained) == "rightright"


def test_a_retry_whose_guidance_is_ignored_is_no_correction(tmp_path: Path) -> None:
    def deaf(text: str) -> str:
        return reflection(2) if "trajectory_summary" in text else "left"

    (results,), *_ = explored(config_of(tmp_path), ScriptedPolicy(deaf))
    base, retry = attempts(results)
    assert retry.actions == base.actions and retry.reward == base.reward == 0.0
    assert not results[1].aux  # neither its reflection nor what was shown is learned


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
    (again,), _, (failure,) = explored(config, policy, accepted=results[:1])
    assert again[-1].cause == "replay_diverged"
    assert "'user: gate 0' instead of 'user: door 0'" in failure


def test_a_base_attempt_of_another_actor_is_retried_from_its_record(tmp_path: Path) -> None:
    config, policy = config_of(tmp_path), ScriptedPolicy(answers(2))
    (results,), *_ = explored(config, policy)
    (again,), *_ = explored(config, policy, accepted=results[:1])
    retry = again[-1].trajectory
    assert retry is not None and retry.actions == ("left", "left", "right", "right")
    damaged = replace(results[0].trajectory, extra=replace(results[0].trajectory.extra, tape=b"x"))  # type: ignore[type-var, union-attr]
    (again,), _, (failure,) = explored(
        config, policy, accepted=[replace(results[0], trajectory=damaged)]
    )
    assert again[-1].cause == "replay_diverged" and "cannot be read" in failure


def test_a_recorded_attempt_gives_back_every_call(tmp_path: Path) -> None:
    (results,), *_ = explored(config_of(tmp_path, "title"), ScriptedPolicy(answers(2)))
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
    player = player_of(replace(base, extra=replace(base.extra, tape=tape)), 2)
    assert player.take_passed("other") is None and player.take_passed("d") == judged[1]
    player.pivot_node = Node(None, (), "", ())
    assert player.take_passed("d") is None


def test_a_retried_attempt_is_stored_shown_and_trained_from_its_pivot(tmp_path: Path) -> None:
    config = config_of(tmp_path, "title", 4, "actor.agent.train=all")
    policy = ScriptedPolicy(answers(2))
    (results,), *_ = explored(config, policy)
    group = Group("g", Task("1", "agent", 1), GroupPlan(1, 1), "complete", tuple(results))
    stored = codec.encode(group)
    again = codec.decode(Group, stored)
    assert codec.encode(again) == stored
    shown = text(again)
    assert "retry of base 0 from step 2" in shown and f"improvement_suggestion: {ADVICE}" in shown
    assert shown.count("[user] door 2 after left") == 2
    rows = [row for row in rows_of([again], config.algorithm.build()) if not row.aux]
    trained = [policy.chat.text(row.token_ids[row.mask].tolist()) for row in rows]
    assert trained == ["leftleft", "rightright"]  # not the title, which came before the pivot


STEPS = 5
World = list[list[dict[str, Any]]]
"""The messages before each call."""


def world_of(random: Random) -> World:
    files = [f"{random.choice('abc')}{n}.txt  {random.randrange(9999)} bytes" for n in range(STEPS)]
    first = [{"role": "system", "content": "Work."}, {"role": "user", "content": files[0]}]
    return [first, *([{"role": "user", "content": "\n".join(files[:n])}] for n in range(1, STEPS))]


def perturbed(world: World, step: int, random: Random) -> World:
    """Changes what the agent sees before a call."""
    changed = [[dict(message) for message in messages] for messages in world]
    message = changed[step][-1]
    text = message["content"]
    at = random.randrange(len(text))
    message["content"] = random.choice(
        [
            f"{text}\n{random.randrange(24):02}:{random.randrange(60):02}",  # a clock
            text[:at] + chr(ord(text[at]) ^ 1) + text[at + 1 :],  # another file
            "\n".join([*text.split("\n")[1:], "new.txt"]),
            text + " ",
            text[:at] + text[at + 1 :],
            "",
        ]
    )
    if random.random() < 0.2:
        changed[step].append({"role": "user", "content": text})
    return changed


async def worked(session: Session, world: World) -> list[dict[str, Any]]:
    """An agent that calls once for each list of messages, and continues its conversation."""
    messages: list[dict[str, Any]] = []
    for number, new in enumerate(world):
        messages += new
        asked = AgentRequest(tuple(messages))
        answer = await session.sampling(asked, str(number), "chat", again=False)
        session.received(str(number))
        messages.append(answer["choices"][0]["message"])
    return messages


def record_of(session: Session, retry: bool = False, train: Train = "main") -> Trajectory:
    made, _ = trajectory(
        session.tree,
        Outcome(0.0),
        slot=0,
        temperature=1.0,
        train=train,
        retry=session.pivot if retry else None,
    )
    return made


def refusals(count: int, seed: int) -> tuple[int, int, int]:
    """Retries attempts in the same and in perturbed worlds. Returns how many retries reached their
    pivot in the same world, how many were accepted though the world differed before the pivot, and
    how many reached it though the world differs only later."""
    random = Random(seed)
    policy = ScriptedPolicy(lambda text: f"reply {len(text)}")

    async def reaches(base: Trajectory, pivot: int, world: World) -> bool:
        tape = player_of(base, pivot)
        session = session_of(policy, tape=tape, guidance=ADVICE)
        try:
            await worked(session, world)
            tape.check_met()
            Replays(3).check(record_of(session, retry=True), Retry(base, pivot, ADVICE))
        except Refused:
            assert isinstance(session.problem, ReplayDiverged)
            return False
        return True

    async def count_all() -> tuple[int, int, int]:
        reached = accepted = later = 0
        for _ in range(count):
            world = world_of(random)
            session = session_of(policy)
            await worked(session, world)
            base, pivot = record_of(session), random.randrange(STEPS)
            reached += await reaches(base, pivot, world)
            changed = perturbed(world, random.randrange(pivot + 1), random)
            accepted += await reaches(base, pivot, changed)
            later += pivot + 1 == STEPS or await reaches(
                base, pivot, perturbed(world, random.randrange(pivot + 1, STEPS), random)
            )
        return reached, accepted, later

    return asyncio.run(count_all())


@pytest.mark.parametrize("seed", [0, 1])
def test_no_world_that_differs_before_the_pivot_is_accepted(seed: int) -> None:
    assert refusals(25, seed) == (25, 0, 25)


async def interleaved(session: Session, worlds: list[World], order: list[int]) -> None:
    """An agent with several conversations, each of which calls in its turn."""
    messages: list[list[dict[str, Any]]] = [[] for _ in worlds]
    made = Counter[int]()
    for number, which in enumerate(order):
        mine = messages[which]
        mine += worlds[which][made[which]]
        made[which] += 1
        answer = await session.sampling(AgentRequest(tuple(mine)), str(number), "chat", again=False)
        session.received(str(number))
        mine.append(answer["choices"][0]["message"])


@pytest.mark.parametrize("seed", range(40))
def test_each_reply_of_a_continued_attempt_is_trained_in_the_context_it_was_sampled_in(
    seed: int,
) -> None:
    """Conversations that look alike, in another order, of a world that may have changed."""
    random = Random(seed)
    policy = ScriptedPolicy(lambda text: f"reply {random.randrange(3)}")
    read = set[Any]()
    sample, world = policy.sample, world_of(random)
    worlds, changes = [world, world, world_of(random)], random.random() < 0.5

    async def noted(ids: Any, params: SampleParams) -> Any:
        made = await sample(ids, params)
        if random.random() < 0.5:  # another way to write the same text
            made = Sample((0, *made.token_ids), (-0.5, *made.logprobs), 0, 0, "stop")
        read.add((*ids, "reply", *made.token_ids))
        return made

    policy.sample = noted  # type: ignore[method-assign]
    order = [which for which in range(3) for _ in range(STEPS)]
    random.shuffle(order)
    cut = random.randrange(1, len(order) + 1)
    first, second = session_of(policy), session_of(policy)
    asyncio.run(interleaved(first, worlds, order[:cut]))
    before = len(policy.prompts)
    second.tape = player_of(record_of(first, train="all"))
    if changes:
        worlds[2] = perturbed(worlds[2], random.randrange(STEPS), random)
        random.shuffle(order)
    asyncio.run(interleaved(second, worlds, order))
    taped = second.metrics.agent["taped"]
    assert taped + len(policy.prompts) - before == len(order) and (changes or taped == cut)
    trained = 0
    for played in record_of(second, train="all").conversations():
        ids = played.token_ids.tolist()
        for start, end in played.step_spans[played.extra.start :].tolist():
            assert (*ids[:start], "reply", *ids[start:end]) in read
            trained += 1
    assert trained == len(order)


COMMANDS = (
    "ls",
    "echo {n} >> log.txt; cat log.txt",
    "wc -c *",
    "mkdir -p d{n}; touch d{n}/f; find . | sort",
    "cat missing{n}",
    "pwd",
    "seq {n} > s.txt; md5sum s.txt",
)


@pytest.mark.parametrize("seed", range(3))
def test_an_agent_with_a_shell_is_retried_from_any_command(tmp_path: Path, seed: int) -> None:
    """Its tools run again; the grader finds the folder as the whole attempt made it."""
    random, workspace = Random(seed), tmp_path / "world"
    workspace.mkdir()
    (workspace / "given.txt").write_text("1\n2\n3\n")
    steps, pivot = 6, random.randrange(6)
    commands = [random.choice(COMMANDS).format(n=random.randrange(9)) for _ in range(steps)]

    def reply(text: str) -> str:
        if "trajectory_summary" in text:
            return reflection(pivot)
        return commands[text.count("[exit")] + (f" # {ADVICE}" if ADVICE in text else "")

    (tmp_path / "tasks.jsonl").write_text(json.dumps({"id": 1, "goal": "work", "turns": steps}))
    (tmp_path / "grade.py").write_text(
        "import os\ndef grade(task, calls, workspace):\n"
        "    return float(len(calls) == 6 and os.path.exists(workspace + '/given.txt'))\n"
    )
    options = {
        "command": f"{EXAMPLES / 'shell_agent.py'}:work",
        "tasks": f"{tmp_path}/tasks.jsonl",
        "reward": f"{tmp_path}/grade.py:grade",
        "workspace": str(workspace),
    }
    config = load(None, ["env=agent", f"env.options={json.dumps(options)}"])
    (results,), metrics, _ = explored(config, ScriptedPolicy(reply))
    base, retry = attempts(results)
    assert metrics.agent["taped"] == pivot == retry.pivot and retry.reward == 1.0
    assert retry.actions[:pivot] == base.actions[:pivot]
    assert retry.observations[: pivot + 1] == base.observations[: pivot + 1]


def as_chat(turns: list[str]) -> dict[str, Any]:
    said = [{"role": ("user", "assistant")[n % 2], "content": t} for n, t in enumerate(turns)]
    return {"messages": [{"role": "system", "content": "Walk."}, *said]}


def as_response(turns: list[str]) -> dict[str, Any]:
    return {"instructions": "Walk.", "input": as_chat(turns)["messages"][1:], "model": "any"}


def as_message(turns: list[str]) -> dict[str, Any]:
    return {"system": "Walk.", "messages": as_chat(turns)["messages"][1:], "max_tokens": 99}


async def walked_in(
    policy: ScriptedPolicy,
    dialect: Dialect,
    body: Callable[[list[str]], dict[str, Any]],
    tape: TapePlayer | None = None,
    guidance: str = "",
) -> Session:
    """An agent that walks through three doors in one conversation."""
    session = session_of(policy, tape=tape, guidance=guidance)
    turns = ["door 0"]
    for number in range(3):
        asked = request_of(dialect, body(turns))
        whole = await session.sampling(asked, str(number), dialect.name, again=False)
        session.received(str(number))
        assert ADVICE not in json.dumps(dialect.write(whole | {"model": "any"}, {}))
        turns += [whole["choices"][0]["message"]["content"], f"door {number + 1}"]
    return session


@pytest.mark.parametrize(
    ("dialect", "body"), [(CHAT, as_chat), (RESPONSES, as_response), (MESSAGES, as_message)]
)
def test_every_dialect_is_retried_and_restarted_with_guidance(
    dialect: Dialect, body: Callable[[list[str]], dict[str, Any]]
) -> None:
    policy = ScriptedPolicy(answers(1))
    walked = partial(walked_in, policy, dialect, body)

    async def test() -> None:
        base = record_of(await walked())
        retry = record_of(await walked(player_of(base, 1), ADVICE), retry=True)
        assert (retry.actions, retry.pivot) == (("left", "right", "right"), 1)
        restart = record_of(await walked(None, ADVICE), retry=True)
        assert (restart.actions, restart.pivot) == (("right",) * 3, 0)
        assert f"Walk.\n{ADVICE}<|im_end|>" in policy.prompts[-3]
        assert restart.system == "Walk."

    asyncio.run(test())


def test_a_model_whose_roles_must_alternate_reads_the_guidance_in_the_last_message() -> None:
    alternating = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}"
    )
    policy = ScriptedPolicy(answers(1))
    policy.chat = ChatFormat(CharTokenizer(CHATML.replace("{% for m in messages %}", alternating)))

    async def test() -> None:
        base = record_of(await walked_in(policy, CHAT, as_chat))
        guided = await walked_in(policy, CHAT, as_chat, player_of(base, 1), ADVICE)
        retry = record_of(guided, retry=True)
        assert (retry.actions, retry.pivot) == (("left", "right", "right"), 1)
        assert policy.prompts[-1].count(ADVICE) == 1
        assert f"door 1\n\n{ADVICE}<|im_end|>" in policy.prompts[-1]
        restart = record_of(await walked_in(policy, CHAT, as_chat, None, ADVICE), retry=True)
        assert (restart.actions, restart.pivot) == (("right",) * 3, 0)

    asyncio.run(test())


async def planned(session: Session, doors: int = 3) -> list[str]:
    """An agent that asks a planner first, whose replies a grammar shapes, and before every second
    door."""
    messages, told = [{"role": "system", "content": "Walk."}], []
    planning = [{"role": "system", "content": "Plan."}]

    async def asked(talk: list[dict[str, Any]], text: str, **more: Any) -> None:
        talk.append({"role": "user", "content": text})
        asked, number = AgentRequest(tuple(talk), **more), str(len(session.tree.nodes))
        answer = await session.sampling(asked, number, "chat", again=False)
        session.received(number)
        talk.append(answer["choices"][0]["message"])
        told.append(f"{talk[-1]['content']} {answer['choices'][0]['finish_reason']}")

    for door in range(doors):
        if door % 2 == 0:
            await asked(planning, f"plan {door}", json_schema={"type": "object"})
        await asked(messages, f"door {door}, {planning[-1]['content']}")
    return told


@pytest.mark.parametrize("restarts", [False, True])
def test_the_main_conversation_is_guided_whichever_the_agent_begins_first(restarts: bool) -> None:
    policy = ScriptedPolicy(answers(1))

    async def test() -> None:
        await planned(first := session_of(policy))
        base, before = record_of(first), len(policy.prompts)
        assert base.system == "Walk." and base.actions == ("left",) * 3
        tape, kind = None if restarts else player_of(base, 1), main_kind(base, restarts=restarts)
        second = session_of(policy, tape=tape, guidance=ADVICE, main=kind)
        await planned(second)
        retry = record_of(second, retry=True)
        assert retry.actions == (("right",) * 3 if restarts else ("left", "right", "right"))
        assert all((ADVICE in text) == ("Walk." in text) for text in policy.prompts[before:])

    asyncio.run(test())


def test_a_restart_guides_the_first_call_if_the_base_did() -> None:
    policy = ScriptedPolicy(answers(1))
    base = record_of(asyncio.run(walked_in(policy, CHAT, as_chat)))
    assert main_kind(base, restarts=False) == ("Walk.", ())
    assert main_kind(base, restarts=True) is None


def test_what_a_grammar_shaped_is_repeated_as_text_after_the_death_of_an_actor() -> None:
    policy = ScriptedPolicy(lambda text: f"reply {len(policy.prompts)}")

    async def test() -> None:
        left, told = None, list[str]()
        for sampled in (5, 0, 0, 1):  # the actor dies three times; then another door comes
            tape, before = left and player_of(left), len(policy.prompts)
            session = session_of(policy, tape=tape)
            again = await planned(session, 4 if sampled == 1 else 3)
            told = told or again
            assert again[:5] == told and len(policy.prompts) - before == sampled
            assert [call.conversation for call in session.tree.tape()][:1] == [-1]
            left = record_of(session, train="all")
            assert left.num_steps == len(again) - 2
        assert left is not None and not left.extra.segments

    asyncio.run(test())


def test_parallel_conversations_are_replayed_in_any_order() -> None:
    """A new conversation that the base attempt did not have is no part of it."""
    policy = ScriptedPolicy(answers(1))

    async def called(order: str, tape: TapePlayer | None = None) -> Session:
        session = session_of(policy, tape=tape, guidance=ADVICE * bool(tape))
        talks: dict[str, list[dict[str, Any]]] = {}
        for number, who in enumerate(order):
            messages = talks.setdefault(who, [])
            messages.append({"role": "user", "content": f"{who} {len(messages)}"})
            asked = AgentRequest(tuple(messages))
            whole = await session.sampling(asked, str(number), "chat", again=False)
            session.received(str(number))
            messages.append(whole["choices"][0]["message"])
        return session

    async def test() -> None:
        base = record_of(await called("abab"))  # the main conversation is that of b
        assert base.actions == ("left", "left") and len(base.extra.segments) == 1
        session = await called("bbbaa", player_of(base, 1))
        assert session.tape is not None
        session.tape.check_met()
        retry = record_of(session, retry=True)
        Replays(3).check(retry, Retry(base, 1, ADVICE))
        assert retry.actions == ("left", "right", "right") and session.metrics.agent["taped"] == 3
        with pytest.raises(Refused, match="differs from the recorded one"):
            await called("bbc", player_of(base, 1))

    asyncio.run(test())
