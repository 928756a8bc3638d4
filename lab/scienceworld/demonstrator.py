"""ScienceWorld's demonstrator, and the teacher who reflects on an attempt."""

import random
from collections.abc import Sequence
from typing import Any

from envs.adapters.scienceworld.simulator import History, Simulator
from envs.base import Skill
from lab.scienceworld.gold_guide import DOORS, Guide, Played, things

WASTE = ("look around", "inventory", "task", "wait1")
FULL = 1.0
PATIENCE = 4
"""Actions more than the guide expects, until a way is given up."""
LONGEST_QUOTE = 60
"""Characters of an action that a reflection repeats."""


def act(
    guide: Guide,
    played: Played,
    skill: Skill,
    rng: random.Random,
    advice: str,
    *,
    guessing: bool,
) -> str:
    """Returns the demonstrator's next action. `guessing`: it does not know what to focus on."""
    right = guide.next(played)
    if right in advice:
        return right
    draw = rng.random()
    if draw < skill.waste:
        return rng.choice([action for action in WASTE if action != right])
    if draw > 1 - skill.mistakes:
        return _mistake(guide, played, right, rng)
    if guessing and right.startswith("focus on ") and rng.random() >= skill.certainty:
        return f"focus on {rng.choice(_here(guide, played) or ['air'])}"
    return right


def reflect(simulator: Simulator, guide: Guide, histories: Sequence[History]) -> dict[str, Any]:
    """Returns a teacher's reflection on an attempt. `histories[k]` is the history before step k;
    the last entry is the finished attempt. The pivot is the step after which the guide no longer
    reaches the full score, or else the first step that leaves as much to do as before. The advice
    is the guide's action there."""
    steps, score = len(histories) - 1, simulator.turn(histories[-1]).score
    left = [guide.distance(simulator.turns(history)) for history in histories]
    useless = [k for k in range(steps) if left[k + 1] >= left[k]]
    pivot: int | None
    if score >= FULL:
        outcome = "success_but_inefficient" if useless else "success"
        pivot = useless[0] if useless else None
    else:
        outcome = "failure"
        fatal = _fatal(simulator, guide, histories)
        pivot = fatal if fatal is not None else useless[0] if useless else steps - 1
    summary = f"{steps} steps, score {round(100 * max(score, 0.0))}"
    advice = fault = None
    if pivot is not None:
        advice = guide.next(simulator.turns(histories[pivot]))
        done = histories[pivot + 1][len(histories[pivot]) :]
        fault = f"step {pivot} was {done[0][:LONGEST_QUOTE] if done else 'no action'}"
    return {
        "trajectory_summary": summary,
        "root_cause_analysis": fault,
        "trajectory_outcome": outcome,
        "improvement_suggestion": advice,
        "retry_from_step": pivot,
    }


def reaches_full_score(simulator: Simulator, guide: Guide, history: History) -> bool:
    """Returns whether the guide reaches the full score from a history."""
    played = simulator.turns(history)
    turn = simulator.turn(history)
    for _ in range(guide.distance(played) + PATIENCE):
        if turn.done:
            break
        command = guide.next(played)
        history = (*history, command)
        turn = simulator.turn(history)
        played.append((command, turn))
    return turn.score >= FULL


def _fatal(simulator: Simulator, guide: Guide, histories: Sequence[History]) -> int | None:
    """Finds the first step after which the guide does not reach the full score; None if it always
    does.

    Once the guide fails, it also fails after every later step, so a binary search finds the first.
    The last step is tried first, because a wrong focus ends the attempt.
    """

    def hopeless(number: int) -> bool:
        return not reaches_full_score(simulator, guide, histories[number])

    last = len(histories) - 1
    if not hopeless(last):
        return None
    if last < 2 or not hopeless(last - 1):
        return last - 1
    low, high = 0, last - 1  # the guide reaches it from `low`, and not from `high`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if hopeless(middle) else (middle, high)
    return low


def _mistake(guide: Guide, played: Played, right: str, rng: random.Random) -> str:
    """Picks a wrong action of the same kind as the right one, or a useless action if there is
    none."""
    now, here = guide.situation(played), _here(guide, played)
    others: list[str] = []
    if right.startswith("go to "):
        others = [f"go to {room}" for room in DOORS.get(now.room, ())]
    elif right.startswith("move "):
        others = [f"{right.rpartition(' to ')[0]} to {thing}" for thing in here]
    else:
        for verb in ("focus on ", "pick up "):
            if right.startswith(verb):
                others = [f"{verb}{thing}" for thing in here]
    return rng.choice([other for other in others if other != right] or WASTE)


def _here(guide: Guide, played: Played) -> list[str]:
    """Lists the things that the room's description has named so far, except the goal's box."""
    now, boxes = guide.situation(played), {deed.to for deed in guide.deeds}
    return [thing for thing in things(now.seen.get(now.room, "")) if thing not in boxes]
