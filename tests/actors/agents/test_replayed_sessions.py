"""Sessions of random agents are replayed from their tapes, in every dialect and any order."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from actors.agents.attempt_record import Train, trajectory
from actors.agents.tape_reader import (
    Replays,
    continuing_player,
    main_kind,
    retry_player,
)
from actors.dialects.chat_completions import AgentRequest, Refused
from actors.dialects.dialects import CHAT, MESSAGES, RESPONSES, Dialect, request_of
from actors.gateway.recorded_call import TapePlayer
from actors.gateway.session import Session
from envs.agents.agent_steps import Outcome
from r3l.errors import ReplayDiverged
from r3l.records import Trajectory
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_interface import Retry
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.config import load
from tests.actors.agents.test_tape_reader import (
    ADVICE,
    EXAMPLES,
    answers,
    attempts,
    explored,
    reflection,
)
from tests.actors.gateway.test_session import session_of
from tests.envs.agents.task_folders.folders import made
from tests.envs.agents.task_folders.test_private_view import pytestmark as needs_views
from tests.r3l.fakes import CHATML, CharTokenizer, ScriptedPolicy

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
        sampling = session.sampling(asked, str(number), "chat", again=False)
        answer = await sampling
        session.received(sampling)
        messages.append(answer["choices"][0]["message"])
    return messages


def record_of(
    session: Session, of: Trajectory | None = None, train: Train = "main", slot: int = 0
) -> Trajectory:
    return trajectory(
        session.tree,
        Outcome(0.0),
        slot=slot,
        temperature=1.0,
        train=train,
        retry=None if of is None else Retry(of, 0, of=of.slot),
        at=None if of is None else session.pivot,
    )


def refusals(count: int, seed: int) -> tuple[int, int, int]:
    """Retries attempts in the same and in perturbed worlds. Returns how many retries reached their
    pivot in the same world, how many were accepted though the world differed before the pivot, and
    how many reached it though the world differs only later."""
    random = Random(seed)
    policy = ScriptedPolicy(lambda text: f"reply {len(text)}")

    async def reaches(base: Trajectory, pivot: int, world: World) -> bool:
        tape = retry_player(base, pivot)
        session = session_of(policy, tape=tape, guidance=ADVICE)
        try:
            await worked(session, world)
            tape.check_met()
            Replays(3).check(record_of(session, base), Retry(base, pivot, ADVICE))
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
        sampling = session.sampling(AgentRequest(tuple(mine)), str(number), "chat", again=False)
        answer = await sampling
        session.received(sampling)
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
    second.tape = continuing_player(record_of(first, train="all"))
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
        if "You review" in text:
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


@needs_views
def test_a_task_folder_is_retried_in_the_state_that_its_agent_sees(tmp_path: Path) -> None:
    made(tmp_path, instruction="Write 1 to /app/answer.")
    commands = ["echo 0 > /app/answer", "echo x >> log; cat log", "ls -R /app", "done"]

    def reply(text: str) -> str:
        if "You review" in text:
            return reflection(2)
        done = text.count("[exit")
        return "echo 1 > answer" if ADVICE in text and done == 2 else commands[done]

    options = {
        "command": f"{EXAMPLES / 'shell_agent.py'}:work",
        "tasks": str(tmp_path),
        "unsandboxed": True,
    }
    config = load(None, ["env=agent", f"env.options={json.dumps(options)}"])
    (results,), metrics, _ = explored(config, ScriptedPolicy(reply))
    base, retry = attempts(results)
    assert (base.reward, retry.reward, retry.pivot) == (0.0, 1.0, 2)
    assert metrics.agent["taped"] == 2 and metrics.agent["restored"] == 1


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
        sampling = session.sampling(asked, str(number), dialect.name, again=False)
        whole = await sampling
        session.received(sampling)
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
        retry = record_of(await walked(retry_player(base, 1), ADVICE), base)
        assert (retry.actions, retry.pivot) == (("left", "right", "right"), 1)
        restart = record_of(await walked(None, ADVICE), base)
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
        guided = await walked_in(policy, CHAT, as_chat, retry_player(base, 1), ADVICE)
        retry = record_of(guided, base)
        assert (retry.actions, retry.pivot) == (("left", "right", "right"), 1)
        assert policy.prompts[-1].count(ADVICE) == 1
        assert f"door 1\n\n{ADVICE}<|im_end|>" in policy.prompts[-1]
        restart = record_of(await walked_in(policy, CHAT, as_chat, None, ADVICE), base)
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
        sampling = session.sampling(asked, number, "chat", again=False)
        answer = await sampling
        session.received(sampling)
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
        tape, kind = None if restarts else retry_player(base, 1), main_kind(base, restarts=restarts)
        second = session_of(policy, tape=tape, guidance=ADVICE, main=kind)
        await planned(second)
        retry = record_of(second, base)
        assert retry.actions == (("right",) * 3 if restarts else ("left", "right", "right"))
        assert all((ADVICE in text) == ("Walk." in text) for text in policy.prompts[before:])

    asyncio.run(test())


def test_a_restart_guides_the_first_call_if_the_base_did() -> None:
    policy = ScriptedPolicy(answers(1))
    base = record_of(asyncio.run(walked_in(policy, CHAT, as_chat)))
    assert main_kind(base, restarts=False) == ("Walk.", ())
    assert main_kind(base, restarts=True) is None


@pytest.mark.parametrize(("shapes", "samples"), [("grammar", 5), ("free_first", 7)])
def test_what_a_grammar_shaped_is_repeated_as_text_after_the_death_of_an_actor(
    shapes: str, samples: int
) -> None:
    policy = ScriptedPolicy(lambda text: f"reply {len(policy.prompts)}")

    async def test() -> None:
        left, told = None, list[str]()
        for sampled in (samples, 0, 0, 1):  # the actor dies three times; then another door comes
            tape, before = left and continuing_player(left), len(policy.prompts)
            session = session_of(policy, tape=tape, shapes=shapes)
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
            sampling = session.sampling(asked, str(number), "chat", again=False)
            whole = await sampling
            session.received(sampling)
            messages.append(whole["choices"][0]["message"])
        return session

    async def test() -> None:
        base = record_of(await called("abab"))  # the main conversation is that of b
        assert base.actions == ("left", "left") and len(base.extra.segments) == 1
        session = await called("bbbaa", retry_player(base, 1))
        assert session.tape is not None
        session.tape.check_met()
        retry = record_of(session, base)
        Replays(3).check(retry, Retry(base, 1, ADVICE))
        assert retry.actions == ("left", "right", "right") and session.metrics.agent["taped"] == 3
        with pytest.raises(Refused, match="differs from the recorded one"):
            await called("bbc", retry_player(base, 1))

    asyncio.run(test())


def test_equal_requests_are_replayed_one_by_one_and_their_repetitions_are_not() -> None:
    said = iter(f"guess {n}" for n in range(99))
    asked = AgentRequest(({"role": "user", "content": "Your guess?"},))

    async def guessed(tape: TapePlayer | None = None, *, repeat: bool = False) -> Session:
        """Asks five times at once, then what the guesses come to."""
        policy = ScriptedPolicy(lambda text: next(said))
        session = session_of(policy, tape=tape, guidance=ADVICE * bool(tape))
        tasks = [
            session.sampling(asked, "q", "chat", again=False, gone=lambda: repeat) for _ in range(1)
        ]
        again = [session.sampling(asked, "q", "chat", again=True)] if repeat else []
        tasks += [session.sampling(asked, "q", "chat", again=False) for _ in range(4)]
        assert again in ([], tasks[:1])
        guesses = [(await task)["choices"][0]["message"]["content"] for task in tasks]
        for task in tasks:
            session.received(task)
        last = AgentRequest(({"role": "user", "content": f"Of {guesses}?"},))
        sampling = session.sampling(last, "l", "chat", again=False)
        await sampling
        session.received(sampling)
        return session

    async def test() -> None:
        first = await guessed()
        base = record_of(first, train="all")
        pivot = base.actions[0]
        for repeat in (False, True):
            session = await guessed(retry_player(base, 0), repeat=repeat)
            replies = [node.reply["content"] for node in session.tree.nodes]
            known = [node.reply["content"] for node in first.tree.nodes]
            at = known.index(pivot)
            assert len(replies) == 6 and replies[:at] == known[:at]
            assert session.metrics.agent["taped"] == at
        for repeat in (False, True):
            session = await guessed(continuing_player(base), repeat=repeat)
            assert [node.reply for node in session.tree.nodes] == [
                node.reply for node in first.tree.nodes
            ]

    asyncio.run(test())
