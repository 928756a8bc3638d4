"""The world `sokoban`: push every box onto a target. Boxes cannot be pulled.

A level is made by reverse play: the boxes begin on the targets and are pulled away at random, so
that every level can be solved. A box in a place that it can never leave for a target ends the
attempt.
"""

import heapq
import itertools
import random
from dataclasses import dataclass
from functools import lru_cache

from envs.builtin.grid_world import DIRECTIONS, Board, GridWorld, beside
from envs.requirements import integer

OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
PULLS = 60
"""Steps of a reverse play."""
TRIES = 1000
"""Reverse plays for a level. If none needs enough steps, the one that needs the most is taken."""
MOST_STATES = 20_000
"""A search gives up after this many boards."""


@dataclass(frozen=True)
class Level:
    """`walls`, `targets`: cells. `start`: the first board, with the boxes' cells in order."""

    size: int
    walls: frozenset[int]
    targets: frozenset[int]
    start: Board


class Sokoban(GridWorld):
    """A room of `size` by `size` cells with `boxes` boxes and `walls` walls inside.

    `shortest`, `longest`: how many steps the shortest solution of a level has. `steps`: step limit
    (default: `longest` + 5).
    """

    words = (
        "you go push a box up down left right wall stops does not move all boxes are on of targets "
        "can never get to target now"
    )

    def __init__(
        self,
        *,
        size: int = 4,
        boxes: int = 1,
        walls: int = 1,
        shortest: int = 4,
        longest: int = 12,
        steps: int | None = None,
        max_response_tokens: int = 32,
    ) -> None:
        integer("size", size, 4, 7)
        integer("boxes", boxes, 1, 3)
        integer("walls", walls, 0, size)
        integer("longest", longest, 8, 20)
        integer("shortest", shortest, 1, longest - 4)
        super().__init__(
            "sokoban",
            "You push boxes onto targets. P is you, B is a box, T is a target, D is a box on a "
            "target, S is you on a target, W is a wall, F is floor. The edge is a wall. A box "
            "cannot be pulled.",
            size,
            longest + 5 if steps is None else integer("steps", steps, longest, 1000),
            max_response_tokens,
        )
        self.settings = (size, boxes, walls, shortest, longest)
        self.level = Level(size, frozenset(), frozenset(), (0,))

    def start(self, seed: int) -> Board:
        self.level = _level(seed, *self.settings)
        return self.level.start

    def moved(self, board: Board, direction: str) -> Board:
        return _moved(self.level, board, direction)

    def remark(self, before: Board, after: Board, direction: str) -> str:
        if after == before:
            blocked = beside(before[0], direction, self.size) in before[1:]
            return "the box does not move." if blocked else "a wall stops you."
        if self.won(after):
            return "all boxes are on targets."
        if self.lost(after):
            return "the box can never get to a target now."
        return f"you {'push a box' if after[1:] != before[1:] else 'go'} {direction}."

    def won(self, board: Board) -> bool:
        return self.level.targets.issuperset(board[1:])

    def lost(self, board: Board) -> bool:
        return not set(board[1:]) <= _pushes(self.level).keys()

    def best(self, board: Board, left: int) -> list[str]:
        """Searches at most MOST_STATES boards. If that is not enough, returns []."""
        needed = _distance(self.level, board, left)
        if not needed:
            return []
        after = {way: self.moved(board, way) for way in DIRECTIONS}
        return [w for w, to in after.items() if _distance(self.level, to, needed - 1) is not None]

    def symbol(self, cell: int) -> str:
        player, *boxes = self.state.board
        on = cell in self.level.targets
        if cell == player:
            return "S" if on else "P"
        if cell in boxes:
            return "D" if on else "B"
        return "T" if on else "W" if cell in self.level.walls else "F"

    def feedback(self) -> str:
        boxes = self.state.board[1:]
        return f"{len(self.level.targets & set(boxes))} of {len(boxes)} on targets."


def _moved(level: Level, board: Board, direction: str) -> Board:
    """Returns the board after a step. A step that a wall or box blocks changes nothing."""
    player, *boxes = board
    cell = beside(player, direction, level.size)
    if cell == player or cell in level.walls:
        return board
    if cell in boxes:
        behind = beside(cell, direction, level.size)
        if behind == cell or behind in level.walls or behind in boxes:
            return board
        boxes[boxes.index(cell)] = behind
    return (cell, *sorted(boxes))


@lru_cache(maxsize=1024)
def _pushes(level: Level) -> dict[int, int]:
    """Returns how many pushes a box needs from each cell to the nearest target, if it is alone.
    Cells from which it can never get there are left out."""
    pushes = dict.fromkeys(level.targets, 0)
    queue = list(level.targets)
    for cell in queue:
        for way in DIRECTIONS:  # pull the box, walking backwards
            to = beside(cell, way, level.size)
            player = beside(to, way, level.size)
            if player in (to, cell) or to == cell or {to, player} & level.walls or to in pushes:
                continue
            pushes[to] = pushes[cell] + 1
            queue.append(to)
    return pushes


@lru_cache(maxsize=50_000)
def _distance(level: Level, board: Board, most: int) -> int | None:
    """Returns the length of the shortest solution (A* search). Returns None if there is none of at
    most `most` steps, or if the search gives up."""
    pushes = _pushes(level)
    if not set(board[1:]) <= pushes.keys():
        return None
    order = itertools.count()
    queue = [(sum(pushes[box] for box in board[1:]), next(order), 0, board)]
    seen = {board: 0}
    while queue and len(seen) < MOST_STATES:
        least, _, steps, now = heapq.heappop(queue)
        if least > most:
            return None
        if level.targets.issuperset(now[1:]):
            return steps
        for way in DIRECTIONS:
            to = _moved(level, now, way)
            if seen.get(to, most + 1) <= steps + 1 or not set(to[1:]) <= pushes.keys():
                continue
            seen[to] = steps + 1
            bound = steps + 1 + sum(pushes[box] for box in to[1:])
            heapq.heappush(queue, (bound, next(order), steps + 1, to))
    return None


@lru_cache(maxsize=1024)
def _level(seed: int, size: int, boxes: int, walls: int, shortest: int, longest: int) -> Level:
    """Makes a level whose shortest solution has `shortest` to `longest` steps."""
    rng = random.Random(f"{seed}/{size}/{boxes}/{walls}")
    found, most = Level(size, frozenset(), frozenset(), ()), 0
    for number in itertools.count(1):
        cells = rng.sample(range(size * size), walls + boxes + 1)
        inside, targets = frozenset(cells[:walls]), frozenset(cells[walls:-1])
        board = _pulled(Level(size, inside, targets, ()), (cells[-1], *sorted(targets)), rng)
        level = Level(size, inside, targets, board)
        needed = _distance(level, board, longest) or 0
        if needed > most:
            found, most = level, needed
        if most >= shortest or (most and number >= TRIES):
            break
    return found


def _pulled(level: Level, board: Board, rng: random.Random) -> Board:
    """Plays backwards from a solved board: walks at random, and pulls the boxes that it meets."""
    for _ in range(PULLS):
        player, *boxes = board
        way = rng.choice(list(DIRECTIONS))
        to, behind = beside(player, way, level.size), beside(player, OPPOSITE[way], level.size)
        if to == player or to in level.walls or to in boxes:
            continue
        if behind in boxes and behind != player:
            boxes[boxes.index(behind)] = player
        board = (to, *sorted(boxes))
    return board
