"""The panel of an evaluation: its tasks, frozen in digests.

    task ─► id, seed, options ────────────────┐
    reset ─► system prompt, first observation ┼─► digest of the task ─► digest of the panel
    spec ─► limits, success threshold ────────┘

Two results can be compared if their panels have the same digest. A panel file holds the digest of
each task. `panels.json` holds the digest of the default evaluation of some environments.
`python -m launch.evaluation.panel NAME …` prints the new text of that file.
"""

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from envs import registry
from envs.agents.agent_runner import AgentRunner
from envs.base import Split
from envs.isolation.pool import environments_of_all
from r3l.errors import EpisodeError, UserError
from r3l.files.user_file import read_text
from r3l.files.whole_file import write_whole
from r3l.records import Record, Task
from r3l.rollout.env_calls import guarded, read_reset
from r3l.rollout.env_interface import Environment, EnvSpec, canonical
from r3l.run.answer_probability import listed_answers, without_answers
from r3l.run.settings.environment import EnvConfig

SHIPPED = Path(__file__).with_name("panels.json")
USUAL_TASKS = 200
"""The number of tasks of the shipped panels, and the default of `r3l-eval --tasks`."""
DIGEST = 16
"""Hexadecimal digits of a digest: 64 bits."""
LARGEST_FILE = 64 << 20  # bytes
FORMAT = 1
MakeEnv = Callable[[Task], Environment | AgentRunner]


class PanelTask(Record, array_like=True):
    """A task of a panel. `digest`: "" if the environment could not be reset to it."""

    id: str
    seed: int
    digest: str


class Panel(Record):
    """The tasks of an evaluation. `env`: the environments' names. `options`: their options that are
    not defaults, except paths, which differ between machines."""

    panel: int
    env: str
    options: dict[str, Any]
    split: str
    digest: str
    tasks: tuple[PanelTask, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """What is stored with a result about its panel."""
        return {"env": self.env, "split": self.split, "tasks": len(self.tasks)} | {
            "digest": self.digest
        }

    @property
    def failed(self) -> int:
        """The number of tasks to which the environment could not be reset."""
        return sum(not task.digest for task in self.tasks)


async def panel_of(
    config: EnvConfig,
    split: Split,
    tasks: Sequence[Task],
    make_env: MakeEnv,
    *,
    at_once: int = 64,
    with_answers: bool = False,
) -> Panel:
    """Resets the environments to all tasks, and returns their panel. A panel with a task that fails
    has the digest "". `with_answers`: raises UserError if a task lists no right answers."""
    room = asyncio.Semaphore(at_once)

    async def frozen(task: Task) -> PanelTask:
        async with room:
            digest = await _digest(task, partial(make_env, task), with_answers=with_answers)
        return PanelTask(task.task_id, task.seed, digest)

    each = await asyncio.gather(*map(frozen, tasks))
    options = _options(config)
    whole = _hash([config.title, options, split, msgspec.to_builtins(each)])
    digest = whole if all(task.digest for task in each) else ""
    return Panel(FORMAT, config.title, options, split, digest, tuple(each))


async def _digest(
    task: Task, make_env: Callable[[], Environment | AgentRunner], *, with_answers: bool
) -> str:
    """Returns a digest of all that a policy reads about a task before its first response. For an
    agent, which alone knows its prompts, returns a digest of the task. Returns "" if the
    environment fails."""
    try:
        env: Environment | AgentRunner = await guarded(make_env)
        try:
            first = "" if isinstance(env, AgentRunner) else await _first(task, env)
            if with_answers and (isinstance(env, AgentRunner) or not await listed_answers(env)):
                raise without_answers(task)
            return _hash([task.task_id, task.seed, task.options, _rules(env.spec), first])
        finally:
            await guarded(env.close)
    except EpisodeError:
        return ""


async def _first(task: Task, env: Environment) -> str:
    """Returns the part of the first observation that is the same at every reset."""
    reset = await guarded(lambda: env.reset(seed=task.seed, options=dict(task.options)))
    first = read_reset(env.spec.name, reset)[0]
    match env.spec.deterministic:
        case "canonical":
            return canonical(first)
        case "no":
            return ""
    return first


def _rules(spec: EnvSpec) -> list[Any]:
    """Returns the part of an environment's description on which its results depend."""
    return [spec.system_prompt, spec.max_steps, spec.max_response_tokens, spec.success_threshold,
            list(spec.stop)]  # fmt: skip


def _options(config: EnvConfig) -> dict[str, Any]:
    """Returns the options that are neither defaults nor paths, by environment."""
    found: dict[str, Any] = {}
    for kind in config.each():
        default = registry.all_options(kind.name, {})
        own = {
            name: value
            for name, value in kind.options.items()
            if default.get(name) != value and not (isinstance(value, str) and "/" in value)
        }
        if own:
            found[kind.name] = own
    return found


def _hash(values: Sequence[Any]) -> str:
    text = json.dumps(values, sort_keys=True, ensure_ascii=True, default=repr)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


# ── files ───────────────────────────────────────────────────────────────────────────────


def write_panel(path: Path, panel: Panel) -> None:
    """Writes a panel, a task a line. Raises UserError."""
    if not panel.digest:
        raise UserError(
            f"--panel {path}: {panel.failed} of {len(panel.tasks)} tasks could not be opened, so "
            "no panel can be written; --show lists them"
        )
    values = msgspec.to_builtins(panel)
    lines = ",\n".join(f"  {json.dumps(task)}" for task in values.pop("tasks"))
    head = json.dumps(values, indent=1).removesuffix("\n}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, f'{head},\n "tasks": [\n{lines}\n ]\n}}\n')
    except OSError as error:
        raise UserError(f"--panel {path}: cannot be written ({error.strerror})") from None


def read_panel(path: Path) -> Panel:
    """Reads a panel file. Raises UserError."""
    what, remedy = f"--panel {path}", "name a file that r3l-eval --panel wrote, or a new one"
    text = read_text(path, what, remedy, LARGEST_FILE)
    try:
        panel = msgspec.json.decode(text, type=Panel)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        raise UserError(f"{what}: is not a panel; {remedy}") from None
    each = msgspec.to_builtins(panel.tasks)
    whole = _hash([panel.env, panel.options, panel.split, list(each)])
    if panel.panel != FORMAT or whole != panel.digest:
        raise UserError(f"{what}: does not match its own digest; {remedy}")
    return panel


def read_shipped() -> dict[str, dict[str, Any]]:
    """Reads the shipped panels, keyed by environment: the number of tasks and their digest."""
    found: dict[str, dict[str, Any]] = json.loads(SHIPPED.read_text(encoding="utf-8"))
    return found


# ── comparison ──────────────────────────────────────────────────────────────────────────


def difference(panel: Panel, other: Panel) -> str:
    """Says how `panel` differs from the panel `other` of a file. Returns "" if they are equal."""
    if panel.digest and panel.digest == other.digest:
        return ""
    for what, here, there in (
        ("environment", panel.env, other.env),
        ("split", panel.split, other.split),
        ("env.options", panel.options, other.options),
    ):
        if here != there:
            return f"is of the {what} {there or 'defaults'}, not {here or 'defaults'}"
    own, its = len(panel.tasks), len(other.tasks)
    if own != its:
        more = "only " if own < its else ""
        return f"has {its} tasks, and this evaluation {more}{own}; give --tasks {its}"
    if panel.failed:
        return f"cannot be checked: {panel.failed} of {own} tasks could not be opened"
    pairs = zip(panel.tasks, other.tasks, strict=True)
    differing = [(now, was) for now, was in pairs if now != was]
    now, was = differing[0]
    if (now.id, now.seed) != (was.id, was.seed):
        return f"has task {was.id} of seed {was.seed} where there is now {now.id} of {now.seed}"
    return (
        f"differs in {len(differing)} of {own} tasks; the first is {now.id}: its options, limits, "
        "system prompt or first observation have changed"
    )


def shipped_difference(panel: Panel) -> str | None:
    """Says how a panel differs from the shipped one. Returns "" if they are equal, and None if no
    panel is shipped for this environment with these options, split and number of tasks."""
    known = read_shipped().get(panel.env)
    if known is None or panel.options or panel.split != "eval":
        return None
    if len(panel.tasks) != known["tasks"] or not panel.digest:
        return None
    if panel.digest == known["digest"]:
        return ""
    return (
        f"differs from the shipped panel of {panel.env}, {known['digest']}: its code or its "
        "library has changed; see launch/evaluation/panels.json"
    )


def shipped_digests() -> dict[str, str]:
    """Returns the digests of the shipped panels, keyed by environment."""
    return {env: panel["digest"] for env, panel in read_shipped().items()}


def agreement(panel: Panel, file: Path | None, known: Panel | None, *, any_panel: bool) -> str:
    """Checks a panel against `known`, which was read from `file`, or else against the shipped one.
    Returns "" if they agree. If they differ, raises UserError; with `any_panel`, returns the
    difference instead."""
    if known is not None:
        why = f"--panel {file}: {text}" if (text := difference(panel, known)) else ""
    else:
        why = shipped_difference(panel) or ""
        if why:
            why = f"panel {panel.digest}: {why}"
    if why and not any_panel:
        raise UserError(f"{why}; or add --any-panel, and the result is marked as not comparable")
    return why


def usual_panel(name: str, options: Mapping[str, Any] = {}, tasks: int = USUAL_TASKS) -> Panel:
    """Returns the panel of an environment's evaluation tasks. Raises UserError."""

    async def made() -> Panel:
        config = EnvConfig(name=name, options=dict(options))
        drawn = registry.tasks_of_all(config, "eval", tasks)
        async with environments_of_all(config, 8) as make_env:
            return await panel_of(config, "eval", drawn, make_env)

    return asyncio.run(made())


def main(names: Sequence[str]) -> None:
    """Prints the text of panels.json, with the panels of `names` made anew."""
    panels = read_shipped() if SHIPPED.exists() else {}
    for name in names or list(panels):
        made = usual_panel(name)
        panels[name] = {"tasks": len(made.tasks), "digest": made.digest}
    lines = [f"  {json.dumps(name)}: {json.dumps(panels[name])}" for name in sorted(panels)]
    print("{\n" + ",\n".join(lines) + "\n}")


if __name__ == "__main__":
    main(sys.argv[1:])
