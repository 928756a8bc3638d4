"""Groups that start inside a stored attempt: all at one step, the same after kills, or failed."""

import asyncio
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.shared.stored_starts import (
    StartsInside,
    newest_of,
    number_of,
    numbered,
    stored_groups,
)
from r3l.records import AttemptKey, Group, GroupPlan, Origin, Recalled, SlotResult, Trajectory
from r3l.rollout.env_interface import EnvSpec
from r3l.rollout.exploration import Exploration
from r3l.rollout.group import explore_group
from r3l.rollout.partial import Progress
from r3l.training.group_memory import Memory
from tests.plug.worlds import TASK, Actor, Killed, Player, digest, explored
from tests.r3l.algorithms.fakes import get, history_of
from tests.r3l.fakes import Corridor, ScriptedPolicy
from tests.r3l.rollout.fakes import always_right

NAMES = ("prefix_rl", "pope", "exit", "restart_from_success")
LUCKY = Player(lucky=True)


def success(policy: Any = None, make: Any = Corridor) -> Recalled:
    """An attempt in slot 3 of the group g9."""
    x = Exploration(TASK, policy or ScriptedPolicy(always_right), make, GroupPlan(1))
    [result] = asyncio.run(explore_group(lambda x: x.play(0), x))
    assert result.trajectory is not None
    return Recalled("", "g9", replace(result.trajectory, slot=3))


KINDS = {
    "prefix_rl": "prefix",
    "pope": "guided 1",
    "exit": "partial",
    "restart_from_success": "restart 2",
}


def started(name: str, handed: Any, make: Any = Corridor, **more: Any) -> Exploration:
    """A group of three slots that was handed an attempt, explored."""
    key = AttemptKey("g9", 3)
    plan = GroupPlan(3, KINDS[name], (key,))
    failures: list[Any] = []
    x = Exploration(
        TASK, LUCKY, make, plan, seed=5, handed=handed, on_failure=failures.append, **more
    )
    asyncio.run(explore_group(get(name).explore, x))
    x.told = failures  # type: ignore[attr-defined]
    return x


def attempts(x: Exploration) -> list[Trajectory]:
    assert sorted(x.results) == [0, 1, 2] and len(x.attempts) == 3
    return x.attempts


# ── what a group is ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", NAMES)
def test_all_attempts_start_at_one_step_whose_prefix_is_read_and_not_trained(name: str) -> None:
    handed = success()
    x = started(name, [handed])
    made, algorithm = attempts(x), get(name)
    [origin] = {attempt.origin for attempt in made}
    assert origin is not None and (origin.group_id, origin.slot) == ("g9", 3)
    assert origin.step == {"pope": 1, "restart_from_success": 1}.get(name, origin.step) in (1, 2)
    for attempt, mask in zip(made, algorithm.masks(made), strict=True):
        first = int(attempt.step_spans[origin.step, 0])
        assert (attempt.pivot, attempt.of) == (origin.step, -1)
        assert attempt.token_ids[:first].tolist() == handed.trajectory.token_ids[:first].tolist()
        assert not mask[:first].any() and mask.sum() == attempt.generated_tokens > 0
    assert len({tuple(attempt.actions) for attempt in made}) > 1 or origin.step == 2


def test_guidance_is_read_after_the_prefix_by_pope_alone() -> None:
    for name in NAMES:
        texts = [
            LUCKY.chat.tokenizer.decode(attempt.as_shown()[0])
            for attempt in attempts(started(name, [success()]))
        ]
        told = ["<|im_start|>system\nThe steps so far begin a solution" in text for text in texts]
        assert told == [name == "pope"] * 3


@pytest.mark.parametrize("name", NAMES)
def test_an_attempt_of_one_step_has_no_inside(name: str) -> None:
    short = success(make=lambda: Corridor("a"))
    x = started(name, [short], lambda: Corridor("a"))
    assert [(one.origin, one.shown) for one in attempts(x)] == [(None, None)] * 3


@pytest.mark.parametrize("name", NAMES)
def test_without_anything_stored_a_group_is_that_of_the_base_class(name: str) -> None:
    algorithm, memory = get(name, share=1.0, group_size=3), Memory()
    plan = algorithm.plan(memory.facts("t"))
    assert plan == Algorithm(group_size=3).plan(memory.facts("t")) == GroupPlan(3)
    group = explored(algorithm, memory)
    assert [t.origin for t in group.trajectories] == [None] * 3


def test_the_history_is_read_group_by_group_with_numbers_in_kinds() -> None:
    groups = stored_groups(
        history_of(("restart 3", (1.0, 0.0)), ("guided 2", (0.0,)), ("", (0.5, 1.0)))
    )
    assert [(g.kind, g.success, g.variance) for g in groups] == [
        ("restart 3", 0.5, 0.25),
        ("guided 2", 0.0, 0.0),
        ("", 0.5, 0.0625),
    ]
    assert newest_of(groups, "restart") == (3, 0.5) and newest_of(groups, "guided") == (2, 0.0)
    assert newest_of(groups, "prefix") == newest_of([], "guided") == (0, 0.0)
    assert number_of(numbered("guided", 12), "guided") == 12
    assert [number_of(kind, "guided") for kind in ("", "guided", "guided x", "guided -1")] == [
        0
    ] * 4


def test_retries_do_not_count_as_the_success_of_a_group() -> None:
    first, again = history_of(("", (0.0, 1.0)))
    [group] = stored_groups([first, again.__class__("g1", 1, 1.0, 0, of=0)])
    assert (group.success, group.variance) == (0.0, 0.25)


# ── kills ───────────────────────────────────────────────────────────────────────────────────


class Mortal(Player):
    """Dies with its actor before the response of this number."""

    def __init__(self, left: int) -> None:
        super().__init__(lucky=True)
        self.left = left

    async def sample(self, token_ids: Any, params: Any) -> Any:
        if self.left == 0:
            raise Killed("the actor was killed")
        self.left -= 1
        return await super().sample(token_ids, params)


def history(algorithm: Algorithm) -> Memory:
    """A memory with groups of which some attempts succeeded and some did not."""
    memory = Memory(seed=3)
    for _ in range(3):
        explored(Algorithm(group_size=4), memory, LUCKY)
    assert {t.reward for g in memory.groups[TASK.task_id] for t in g.trajectories} == {0.0, 1.0}
    return memory


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_a_group_is_the_same_wherever_its_actor_is_killed(name: str, saved: bool) -> None:
    """After anything that it stores, and before any response, also if steps are saved."""
    settings = {} if name == "exit" else {"hard": 1.0}
    algorithm: StartsInside = get(name, group_size=4, share=1.0, **settings)
    memory = history(algorithm)
    plan = algorithm.plan(memory.facts(TASK.task_id))
    assert plan.handed

    def act(
        player: Player, results: Any = (), partial: Any = (), lives: int | None = None
    ) -> Actor:
        actor = Actor(
            algorithm, plan, player, handed=memory.handed(plan), results=results, lives=lives
        )
        actor.kept = {result.slot: result for result in partial}  # type: ignore[attr-defined]

        async def save(result: SlotResult) -> None:
            actor.kept[result.slot] = result  # type: ignore[attr-defined]

        actor.x.progress = Progress(list(partial), save if saved else None)
        return actor

    def whole(results: Any) -> list[Any]:
        return digest(Group("g", TASK, plan, "complete", tuple(results)))

    wanted = whole(act(Player(lucky=True)).run())
    assert all(status == "done" for _, status, *_ in wanted)
    for kill in (*({"lives": n} for n in range(4)), *({"response": n} for n in range(12))):
        player = Mortal(kill.get("response", -1))
        first = act(player, lives=kill.get("lives"))
        try:
            results = first.run()
        except Killed:
            left = [s for s in first.stored if isinstance(s, SlotResult)]
            open_ = [r for r in first.kept.values() if r.slot not in {s.slot for s in left}]  # type: ignore[attr-defined]
            results = act(Player(lucky=True), left, open_).run()
        assert whole(results) == wanted, kill


@pytest.mark.parametrize("name", NAMES)
def test_the_same_facts_get_the_same_plan(name: str) -> None:
    algorithm, memory = get(name, group_size=4), history(get(name))
    facts = [memory.facts(TASK.task_id) for _ in range(20)]
    plans = [algorithm.plan(one) for one in facts]
    again = [
        algorithm.plan(replace_history(one, list(memory.history(TASK.task_id)))) for one in facts
    ]
    assert plans == again and len(set(plans)) > (1 if name != "pope" else 0)


def replace_history(facts: Any, history: Any) -> Any:
    return type(facts)(**{**vars(facts), "history": history})


# ── a world that has changed ────────────────────────────────────────────────────────────────


class Renamed(Corridor):
    """Its doors are called gates, from the second on."""

    def step(self, action: str) -> Any:
        text, *rest = super().step(action)
        return text.replace("door", "gate"), *rest


class Retold(Corridor):
    """Its system prompt is another one."""

    def __init__(self) -> None:
        super().__init__()
        self.spec = EnvSpec("corridor", "Answer well.", max_steps=10, max_response_tokens=50)


class Shorter(Corridor):
    """Says the same, but ends after the first door."""

    def step(self, action: str) -> Any:
        text, reward, _, *rest = super().step(action)
        return text, reward, True, *rest


class Unreplayable(Corridor):
    """Says that it cannot be replayed."""

    def __init__(self) -> None:
        super().__init__(snapshots=True)
        self.spec = EnvSpec("corridor", "Answer.", 10, 50, deterministic="no")


@pytest.mark.parametrize(
    ("world", "cause", "said"),
    [
        (Renamed, "replay_diverged", "observation 1 differs"),
        (lambda: Corridor("abcd"), "", ""),  # what follows may differ
        (Retold, "replay_diverged", "system prompt differs"),
        (Shorter, "replay_diverged", "ends at step 0 on replay"),
        (Unreplayable, "not_replayable", "replay is not deterministic"),
    ],
)
@pytest.mark.parametrize("name", NAMES)
def test_a_prefix_whose_world_has_changed_is_a_counted_failure_and_never_a_sample(
    name: str, world: Any, cause: str, said: str
) -> None:
    x = started(name, [success()], world)
    if not cause:
        assert len(attempts(x)) == 3
        return
    assert [(r.status, r.cause) for r in x.results.values()] == [("failed", cause)] * 3
    assert not x.attempts and [f.cause for f in x.told] == [cause] * 3  # type: ignore[attr-defined]
    assert all(said in str(failure) for failure in x.told)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES)
def test_an_attempt_that_was_evicted_in_between_fails_its_slots(name: str) -> None:
    x = started(name, [])
    assert [(r.status, r.cause) for r in x.results.values()] == [("failed", "start_gone")] * 3


def test_another_actor_that_finds_the_attempt_gone_keeps_what_is_stored() -> None:
    done = {0: started("prefix_rl", [success()]).results[0]}
    x = started("prefix_rl", [], results=dict(done))
    assert [r.cause or r.status for r in x.results.values()] == ["done", *["start_gone"] * 2]


def test_the_start_is_drawn_for_the_group_and_is_in_every_attempt() -> None:
    steps = set()
    for seed in range(12):
        x = started("exit", [success()])
        x = Exploration(TASK, LUCKY, Corridor, x.plan, seed=seed, handed=[success()])
        asyncio.run(explore_group(get("exit").explore, x))
        [origin] = {attempt.origin for attempt in x.attempts}
        assert origin == Origin("g9", 3, int(np.random.default_rng(seed).integers(1, 3)))
        steps.add(origin.step)
    assert steps == {1, 2}
