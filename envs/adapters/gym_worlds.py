"""Words for Gymnasium's own text worlds: names of actions, the task, and the observations."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Pays = Literal["own", "finish"]
TAXI_MAP = """\
+---------+
|R: | : :G|
| : | : : |
| : : : : |
| | : | : |
|Y| : |B: |
+---------+"""
STANDS = ("R", "G", "Y", "B")


@dataclass(frozen=True)
class World:
    """`actions`: names of the numbered actions, in order. `task`: for the system prompt. `text`:
    puts an observation of an unwrapped environment into words. `pays`: see Gymnasium."""

    actions: str
    task: str
    text: Callable[[Any, Any], str]
    pays: Pays = "own"


def _lake(env: Any, observation: Any) -> str:
    rows = [[cell.decode() for cell in row] for row in env.desc.tolist()]
    row, column = divmod(int(observation), len(rows[0]))
    rows[row][column] = "P"
    return f"You are at row {row} column {column}.\n" + "\n".join(map(" ".join, rows))


def _cliff(env: Any, observation: Any) -> str:
    row, column = divmod(int(observation), 12)
    rows = [["o"] * 12 for _ in range(4)]
    rows[3] = ["o", *"C" * 10, "G"]
    rows[row][column] = "P"
    return f"You are at row {row} column {column}.\n" + "\n".join(map(" ".join, rows))


def _taxi(env: Any, observation: Any) -> str:
    row, column, passenger, destination = map(int, env.decode(int(observation)))
    where = "in the taxi" if passenger == len(STANDS) else f"at {STANDS[passenger]}"
    there = [s for s, at in zip(STANDS, env.locs, strict=True) if tuple(at) == (row, column)]
    stand = f", at {there[0]}" if there else ""
    return (
        f"The taxi is at row {row} column {column}{stand}. The passenger is {where}. The "
        f"destination is {STANDS[destination]}."
    )


def _cards(env: Any, observation: Any) -> str:
    total, shown, ace = map(int, observation)
    return f"Your sum is {total}{' with a usable ace' if ace else ''}. The dealer shows {shown}."


WORLDS = {
    "FrozenLake": World(
        "left down right up",
        "Walk over the ice (F) to the goal (G). P is you, S is the start. A hole (H) ends the "
        "attempt.",
        _lake,
    ),
    "CliffWalking": World(
        "up right down left",
        "Walk to the goal (G). P is you. A step into the cliff (C) leads back to the start.",
        _cliff,
        "finish",
    ),
    "Taxi": World(
        "south north east west pickup dropoff",
        "Drive the taxi to the passenger, pick them up, and drop them off at their destination. "
        f"The stands are R, G, Y and B. A | is a wall, a : is not.\n{TAXI_MAP}\n",
        _taxi,
        "finish",
    ),
    "Blackjack": World(
        "stick hit",
        "Get closer to 21 than the dealer, but not above it. The dealer draws up to 17.",
        _cards,
    ),
}
"""By the id without its version and variant. Taxi and CliffWalking punish each step, so that no
total says whether the task was done; they pay 1 to finish."""
