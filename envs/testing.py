"""Checks that an environment meets the needs of exploration and retries.

    r3l-env check path/to/file.py:Class [option=value …]  # one line
    check_env("path/to/file.py:Class")    # raises AssertionError: seed, step, what
    check_env(my_env, seeds=range(10))

Every value must have the right type. The same seed and actions must give the same lines, even with
two interleaved instances. An attempt restored from a snapshot must continue like its original.
Nonsense must get a reply. Demonstrations must succeed within the step limit. `close` must end every
process.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil

from envs import registry
from envs.base import TextEnv
from envs.openings import openings
from r3l.errors import EnvironmentFailed, UserError
from r3l.records import MOST_PARTS, Task
from r3l.rollout.env_calls import parts_in, read_reset, read_step
from r3l.rollout.env_interface import EnvSpec, canonical
from r3l.rollout.prompts import Prompts
from r3l.settings.user_class import place_of

NONSENSE = ("", "zzz", "<action>", "go go go " * 40, "ünï©ode 🔥\n\x00 {}[]()'\"\\")

CLOSE_S = 10.0
"""Time limit for an environment's processes to end after close(), seconds."""


@dataclass
class RecordedAttempt:
    """An attempt that a check played. `replies[k]`: (observation, reward, terminated, truncated)
    after `actions[k]`."""

    first: str
    actions: list[str] = field(default_factory=list)
    replies: list[tuple[Any, ...]] = field(default_factory=list)
    admissible: list[str] = field(default_factory=list)

    @property
    def ended(self) -> bool:
        return bool(self.replies) and any(self.replies[-1][2:])


def check_env(
    name_or_env: str | TextEnv,
    seeds: Iterable[int] = (0, 1, 2),
    *,
    options: dict[str, Any] | None = None,
    max_steps: int = 30,
) -> None:
    """Checks an environment. `name_or_env`: a registry name, a path or an instance.

    For a name or path, makes two instances with `options` and checks them on one training task per
    seed. Also resets a user's class to every task that it lists (`envs.openings`). Checks a given
    instance alone, from `reset(seed=seed)`. Random attempts have at most `max_steps` steps. Raises
    AssertionError with the seed and the step, or with the task.
    """
    made = options or {}
    before = {p.pid for p in psutil.Process().children(recursive=True)}
    if isinstance(name_or_env, str):
        name = name_or_env
        env, other = registry.make(name, **made), registry.make(name, **made)
        tasks = {seed: registry.tasks(name, made, "train", 1, seed) for seed in seeds}
        source = registry.task_source(name, **made)
        for seed, drawn in tasks.items():
            assert drawn == source.tasks("train", 1, seed=seed), (
                f"seed {seed}: the task source gives other tasks when asked again"
            )
            Check(env, seed, drawn[0], max_steps, other).run()
        other.close()
        try:
            openings(name, made)
        except UserError as error:
            raise AssertionError(str(error).removeprefix(f"env {name}: ")) from error
    else:
        env = name_or_env
        for seed in seeds:
            Check(env, seed, Task(f"check/{seed}", "check", seed), max_steps).run()
    env.close()
    env.close()
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=CLOSE_S)
    assert not alive, f"close() leaves processes running: {alive}"


class Check:
    """All checks of one task. `other`: a second instance of `env`. The caller closes both."""

    def __init__(
        self, env: TextEnv, seed: int, task: Task, max_steps: int, other: TextEnv | None = None
    ) -> None:
        self.env, self.seed, self.task, self.other = env, seed, task, other
        self.max_steps = min(max_steps, env.spec.max_steps)
        self.step = -1

    def run(self) -> None:
        self._spec()
        played = self._random_attempt()
        if self.env.spec.deterministic != "no":
            self._replay(played, "the same instance")
            self._play_interleaved(played)
        self._snapshots(played)
        self._nonsense()
        self._demonstration()

    def message(self, what: str) -> str:
        at = "reset" if self.step < 0 else f"step {self.step}"
        return f"seed {self.seed}, {at}: {what}"

    def reset(self, env: TextEnv) -> RecordedAttempt:
        self.step = -1
        seed, options = self.task.seed, dict(self.task.options)
        observation, info = self.call(
            lambda: read_reset(env.spec.name, env.reset(seed=seed, options=options))
        )
        return RecordedAttempt(observation, admissible=list(info.get("admissible", ())))

    def act(self, env: TextEnv, played: RecordedAttempt, action: str) -> None:
        self.step = len(played.actions)
        *reply, info = self.call(lambda: read_step(env.spec.name, env.step(action)))
        self._parts(info.get("rewards", {}))
        played.actions.append(action)
        played.replies.append(tuple(reply))
        played.admissible = list(info.get("admissible", ()))

    def _parts(self, given: object) -> None:
        """Refuses parts of a reward that a run would leave out."""
        rule = f"at most {MOST_PARTS} numbers, with names of letters, digits and _"
        kept = parts_in({"rewards": given})
        assert isinstance(given, dict) and len(kept) == len(given), self.message(
            f'info["rewards"] is {given!r:.200}; it must be {rule}'
        )

    def call(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except EnvironmentFailed as error:
            raise AssertionError(self.message(str(error))) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            said, place = f"raised {type(error).__name__}: {error}", place_of(error)
            at = f" ({place})" if place else ""
            raise AssertionError(self.message(said + at)) from error

    def _spec(self) -> None:
        spec = self.env.spec
        assert isinstance(spec, EnvSpec), self.message(f"spec {spec!r} is not an EnvSpec")
        self.call(lambda: Prompts(spec.prompts))

    def _random_attempt(self) -> RecordedAttempt:
        """Plays some nonsense and some random actions. The random actions come from
        `admissible`, or from the demonstration if `admissible` is empty."""
        rng, env = random.Random(self.seed), self.env
        played = self.reset(env)
        shown = self._shown()
        while not played.ended and len(played.actions) < self.max_steps:
            known = played.admissible or shown
            sensible = known and rng.random() > 0.1
            self.act(env, played, rng.choice(known) if sensible else rng.choice(NONSENSE))
        if played.ended and (remark := getattr(env, "feedback", None)) is not None:
            text = self.call(remark)
            assert isinstance(text, str), self.message(f"feedback {text!r} is not text")
        return played

    def _shown(self) -> list[str]:
        demonstration = getattr(self.env, "demonstration", None)
        if demonstration is None:
            return []
        actions = self.call(demonstration)
        texts = isinstance(actions, list) and all(isinstance(a, str) for a in actions)
        assert texts, self.message(f"demonstration {actions!r} is not a list of texts")
        self.reset(self.env)  # a demonstration may have played
        return list(actions)

    def _replay(self, played: RecordedAttempt, how: str) -> None:
        second = self.reset(self.env)
        self._same(played.first, second.first, f"{how}: observation")
        for action in played.actions:
            self.act(self.env, second, action)
            self._same_reply(played, second, how)

    def _play_interleaved(self, played: RecordedAttempt) -> None:
        """Replays the attempt in a second instance. Lets the two instances take turns."""
        if self.other is None:
            return
        how, rng = "another instance, interleaved", random.Random(self.seed + 1)
        second, disturbing = self.reset(self.other), self.reset(self.env)
        self._same(played.first, second.first, f"{how}: observation")
        for action in played.actions:
            if disturbing.ended:
                disturbing = self.reset(self.env)
            known = disturbing.admissible or played.actions
            self.act(self.env, disturbing, rng.choice(known))
            random.random()
            self.act(self.other, second, action)
            self._same_reply(played, second, how)

    def _snapshots(self, played: RecordedAttempt) -> None:
        env = self.env
        if not hasattr(env, "snapshot") or not hasattr(env, "restore"):
            return
        count = len(played.actions)
        for cut in sorted({0, count // 2, max(count - 1, 0)}):
            original = self.reset(env)
            for action in played.actions[:cut]:
                self.act(env, original, action)
            state = self.call(env.snapshot)
            assert isinstance(state, bytes), self.message(f"snapshot {type(state)} is not bytes")
            for action in played.actions[cut:]:
                self.act(env, original, action)
            self.reset(env)
            self.call(lambda state=state: env.restore(state))  # type: ignore[misc]
            second = RecordedAttempt(original.first, original.actions[:cut], original.replies[:cut])
            for action in played.actions[cut:]:
                self.act(env, second, action)
                self._same_reply(original, second, f"after the snapshot at step {cut}")

    def _nonsense(self) -> None:
        played = self.reset(self.env)
        for action in NONSENSE:
            if not played.ended:
                self.act(self.env, played, action)
                if not played.ended:  # nobody reads what follows the last turn
                    assert played.replies[-1][0], self.message(f"the reply to {action!r} is empty")

    def _demonstration(self) -> None:
        self.reset(self.env)
        actions = self._shown()
        if not actions:
            return
        spec, played = self.env.spec, self.reset(self.env)
        limit = spec.max_steps
        assert len(actions) <= limit, self.message(
            f"the demonstration has {len(actions)} actions, above the limit of {limit}"
        )
        for action in actions:
            assert not played.ended, self.message("the attempt ends before its demonstration does")
            self.act(self.env, played, action)
        total = sum(reply[1] for reply in played.replies)
        reached = total >= spec.success_threshold - 1e-9
        assert reached, self.message(f"the demonstration earns {total} of {spec.success_threshold}")

    def _same_reply(self, played: RecordedAttempt, second: RecordedAttempt, how: str) -> None:
        was, now = played.replies[len(second.replies) - 1], second.replies[-1]
        self._same(was[0], now[0], f"{how}: observation")
        assert was[1:] == now[1:], self.message(f"{how}: {was[1:]} before, {now[1:]} now")

    def _same(self, was: str, now: str, what: str) -> None:
        if self.env.spec.deterministic == "canonical":
            was, now = canonical(was), canonical(now)
        assert was == now, self.message(f"{what} was {was!r}, is now {now!r}")
