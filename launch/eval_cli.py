"""`r3l-eval`: evaluates a model folder on an environment's tasks."""

import asyncio
import atexit
import json
import os
import sys
import zlib
from collections.abc import Callable, Coroutine, Set
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from msgspec import to_builtins

from envs.agents.agent_runner import AgentRunner
from launch.cli import as_overrides, as_typed
from launch.evaluation.panel import (
    USUAL_TASKS,
    Panel,
    agreement,
    panel_of,
    read_panel,
    shipped_digests,
    write_panel,
)
from launch.evaluation.play import keys_of, own_engine, play_all
from launch.evaluation.printing import comparison_table, conversations, panel_line, table
from launch.inspection.pages.evaluation_page import EvaluationData, evaluation_page
from launch.inspection.pages.page_file import check_place, write_page
from learner.evaluation.conversation import Conversation
from learner.evaluation.evaluation_folder import (
    EvaluationFolder,
    Settings,
    further_parts,
    part_folder,
    read_attempts,
    read_other,
    read_settings,
    settings_of,
)
from learner.evaluation.metrics import Report, by_task, compare, report
from r3l.errors import EngineDead, UserError
from r3l.models.model_folder import read_checksums
from r3l.records import Task
from r3l.rollout.env_interface import Environment
from r3l.run import config as configuration
from r3l.run.cards import CARD
from r3l.run.config import RunConfig
from r3l.run.downloads import with_downloads
from r3l.run.evaluation_tags import number_text
from r3l.run.files.run_folder import RunFolder, run_folder
from r3l.run.process.command_line import OneLine, echo, version_option

PROGRESS_S = 5.0
READING = {"read", "pass_at", "show", "against", "as_json", "html"}
"""The options that can be given with --read."""
Results = dict[float | None, tuple[Report, list[Conversation]]]
"""Report and attempts of each part, keyed by temperature; None: the first part."""
AGAIN = "run the same command again to continue"


@click.command("r3l-eval", cls=OneLine)
@version_option
@click.option("--run", "run_name", help="a training run: use its settings and its model")
@click.option(
    "--model",
    help="model folder, org/name[@revision] of the hub, GGUF file, smollm2 or builtin; default: "
    "the run's best, or builtin",
)
@click.option(
    "--env",
    "env_name",
    help="one environment, by name or path/to/file.py:Class; default: the run's, or workshop",
)
@click.option(
    "--split",
    type=click.Choice(["train", "eval"]),
    default="eval",
    show_default=True,
    help="split of the tasks",
)
@click.option(
    "--tasks",
    "count",
    type=click.IntRange(1, 100_000),
    default=USUAL_TASKS,
    show_default=True,
    help="tasks to play",
)
@click.option(
    "--attempts", type=click.IntRange(min=1), default=1, show_default=True, help="attempts per task"
)
@click.option(
    "--pass-at", default="", help="values of k for pass@k, such as 4,8; at most --attempts"
)
@click.option(
    "--temperature",
    "temperatures",
    help="sampling temperatures, such as 1,0: the tasks are played at each; default: the run's, "
    "or 0.4",
)
@click.option("--seed", type=int, help="sampling seed; default: the run's, or 0")
@click.option(
    "--at-once",
    type=click.IntRange(min=1),
    default=64,
    show_default=True,
    help="concurrent attempts",
)
@click.option("--out", type=Path, help="folder for the results; default: one under runs/eval")
@click.option(
    "--read", type=Path, help="folder of an evaluation: print its report, and play nothing"
)
@click.option(
    "--show", type=click.IntRange(1), metavar="N", help="print N conversations, failures first"
)
@click.option(
    "--against", type=Path, help="folder of another evaluation of the same tasks: compare by task"
)
@click.option(
    "--panel",
    "panel_file",
    type=Path,
    metavar="FILE",
    help="file of a panel: checks that the tasks are those of the file; a new file is written",
)
@click.option(
    "--any-panel",
    is_flag=True,
    help="go on although the tasks differ from --panel or the shipped panel; the result is marked "
    "as not comparable",
)
@click.option(
    "--html", type=Path, metavar="FILE", help="also write one page to send: figures and texts"
)
@click.option("--yes", is_flag=True, help="download a model or data set of the hub without asking")
@click.option("--json", "as_json", is_flag=True, help="print only the report, as a JSON object")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def main(**options: Any) -> None:
    """Play tasks and print success, reward, steps, tokens and pass@k with 95 % intervals.

    For example `r3l-eval --run first`. Results are stored in a folder. The same command continues
    an interrupted evaluation. KEY=VALUE arguments are settings. --temperature 0 makes an
    evaluation repeatable. eval.exact=true adds the exact probability of the right answers, in
    environments that list them.
    """
    try:
        if options["as_json"] and options["show"]:
            why = "prints text, but --json prints only JSON; leave one of them out"
            raise UserError(f"--show: {why}")
        if options["html"] is not None:
            check_place(options["html"], "--html")
        act = _evaluate if options["read"] is None else _read
        act(options)
    except UserError as error:
        typed = {"model": options["model"], "env": options["env_name"], "seed": options["seed"]}
        echo(f"r3l-eval: {as_typed(str(error), typed, options['overrides'])}", err=True)
        sys.exit(2)
    except EngineDead as error:
        echo(f"r3l-eval: {error}; {AGAIN}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        echo(f"r3l-eval: interrupted; {AGAIN}", err=True)
        sys.exit(130)


def _evaluate(options: dict[str, Any]) -> None:
    """Plays the missing attempts, then writes and prints the report."""
    from envs.registry import tasks_of_all

    config, file = _configured(options), options["panel_file"]
    attempts, ks = options["attempts"], _ks(options["pass_at"], options["attempts"], "--attempts")
    wanted = (config.env, options["split"], options["count"])
    tasks = with_downloads(lambda: tasks_of_all(*wanted), yes=options["yes"])
    known = read_panel(file) if file is not None and file.exists() else None
    saved = read_checksums(Path(config.model))
    step = f"step {saved.step}" if saved else ""
    if step and not options["as_json"]:
        echo(f"{config.model}: weights of {step}", err=True)
    weights = " ".join(filter(None, (step, _files_checksum(Path(config.model)))))
    sitting = Sitting(config, tasks, keys_of(tasks, attempts), weights, known)
    asyncio.run(_unless_interrupted(_sit(sitting, options)))
    results = {}
    for temperature, folder in sitting.parts.items():
        played = [folder.done[key] for key in sitting.keys]
        results[temperature] = report(played, ks), played
        folder.finish(results[temperature][0])
    _print(options, results, sitting.settings, sitting.others)
    if not options["as_json"]:
        echo(f"attempts and report: {sitting.place}")


@dataclass
class Sitting:
    """What one call of the command plays. `known`: the panel of --panel, if its file exists. `_sit`
    sets the fields with defaults."""

    config: RunConfig
    tasks: list[Task]
    keys: list[tuple[str, int]]
    weights: str
    known: Panel | None
    settings: Settings = field(default_factory=dict)
    place: Path = Path()
    parts: dict[float | None, EvaluationFolder] = field(default_factory=dict)
    others: list[Conversation] = field(default_factory=list)


async def _sit(sitting: Sitting, options: dict[str, Any]) -> None:
    """Opens all tasks, checks their panel, and plays what is missing."""
    from envs.isolation.pool import environments_of_all

    config, split, file = sitting.config, options["split"], options["panel_file"]
    async with environments_of_all(config.env, options["at_once"]) as made:
        panel = await panel_of(
            *(config.env, split, sitting.tasks, made),
            at_once=options["at_once"],
            with_answers=config.eval.exact,
        )
        why = agreement(panel, file, sitting.known, any_panel=options["any_panel"])
        kept = {"panel": panel.facts} | ({"not_comparable": why} if why else {})
        known = {"model": config.model, "weights": sitting.weights, "split": split}
        temperatures = (None, *config.eval.further_temperatures)
        settings = {t: settings_of(config, **known, temperature=t) | kept for t in temperatures}
        sitting.settings = settings[None]
        sitting.others = _others(options, {task.task_id for task in sitting.tasks}, settings[None])
        sitting.place = options["out"] or _default_folder(config, settings[None])
        with ExitStack() as stack:
            for temperature in temperatures:
                place = part_folder(sitting.place, temperature)
                folder = EvaluationFolder(place, settings[temperature])
                sitting.parts[temperature] = stack.enter_context(closing(folder))
            if file is not None and sitting.known is None:
                write_panel(file, panel)
            if any(folder.missing(sitting.keys) for folder in sitting.parts.values()):
                # The engine's libraries report leaks when this process exits: below the results.
                atexit.register(os.dup2, os.open(os.devnull, os.O_WRONLY), 2)
                await _play(sitting, made, options)


def _read(options: dict[str, Any]) -> None:
    """Prints the report of a stored evaluation. Changes nothing on disk."""
    place, context = options["read"], click.get_current_context()
    for parameter in context.command.params:
        given = context.get_parameter_source(str(parameter.name)) is ParameterSource.COMMANDLINE
        if given and parameter.name not in READING:
            what = parameter.opts[0] if parameter.param_type_name == "option" else "settings"
            raise UserError(f"--read {place}: only reads results; leave {what} out")
    attempts, settings = read_attempts(place, "--read"), read_settings(place)
    tasks = by_task(attempts)
    ks = _ks(options["pass_at"], min(map(len, tasks.values()), default=1), "the attempts per task")
    results: Results = {None: (report(attempts, ks), attempts)}
    for temperature, folder in further_parts(place).items():
        more = read_attempts(folder, "--read")
        results[temperature] = report(more, ks), more
    _print(options, results, settings, _others(options, tasks.keys(), settings))


def _others(options: dict[str, Any], tasks: Set[str], settings: Settings) -> list[Conversation]:
    """Returns the attempts of the evaluation in --against; [] if the option is not given."""
    return read_other(options["against"], tasks, settings) if options["against"] else []


def _print(
    options: dict[str, Any], results: Results, settings: Settings, others: list[Conversation]
) -> None:
    first, attempts = results[None]
    further = {number_text(t): each for t, (each, _) in results.items() if t is not None}
    compared = compare(attempts, others) if others else {}
    panel = panel_line(settings, shipped_digests())
    if options["html"] is not None:
        other = read_settings(options["against"]) if others else {}
        named = {f"temperature {t}": each for t, each in further.items()}
        data = EvaluationData(
            {"": first, **named}, attempts, settings, panel, others, other, compared
        )
        page = evaluation_page(data)
        echo(write_page(options["html"], page, "--html"), err=options["as_json"])
    if options["as_json"]:
        values = to_builtins(first)
        for name in ("panel", "not_comparable"):
            if name in settings:
                values[name] = settings[name]
        if further:
            values["temperatures"] = to_builtins(further)
        if compared:
            values["against"] = to_builtins(compared)
        echo(json.dumps(values))
        return
    main = settings.get("temperature")
    echo(table(first, further, number_text(main) if isinstance(main, int | float) else "first"))
    if panel:
        echo(panel)
    if compared:
        echo(f"\nagainst {options['against']}:\n{comparison_table(compared)}")
    if options["show"]:
        echo(f"\n{conversations(attempts, options['show'])}\n")


def _configured(options: dict[str, Any]) -> RunConfig:
    """Returns the evaluation's settings. Their `model` is the path of a folder."""
    from actors.engine_arguments import check_engine_arguments
    from launch.checks.of_model import chat_format, check_agent, model_folder
    from launch.checks.presets import DEMO

    trained = None if options["run_name"] is None else run_folder(options["run_name"])
    model_name = options["model"]
    if model_name is None:
        model_name = _model_of(trained) if trained else "builtin"
    named = {"model": model_name, "env": options["env_name"], "seed": options["seed"]}
    alone = [] if options["env_name"] is None else ["env.others={}"]
    settings_file = None if trained is None else RunFolder(trained).require_settings().own_config
    config = configuration.load(
        settings_file,
        [*as_overrides(named), *alone, *_temperatures(options), *options["overrides"]],
        demo=None if trained else DEMO,
    )
    model = with_downloads(lambda: model_folder(config.model), yes=options["yes"], trained=False)
    check_agent(config, chat_format(config, model))
    check_engine_arguments(config.actor)
    return config.model_copy(update={"model": str(model)})


def _model_of(run: Path) -> str:
    """Finds a run's best model or else its last. Raises UserError if it has neither."""
    RunFolder(run).require_settings()
    for folder in (run / "best", run / "model"):
        if (folder / "config.json").is_file():
            return str(folder)
    raise UserError(
        f"--run {run}: has no model/ yet; the run's last step writes it; wait, or give a model "
        "folder with --model"
    )


async def _play(
    sitting: Sitting, made: Callable[[Task], Environment | AgentRunner], options: dict[str, Any]
) -> None:
    from actors.agents.agent_attempt import agents_served

    config, parts, keys = sitting.config, sitting.parts, sitting.keys
    progress, log = None, sitting.place / "engine.log"
    if not options["as_json"]:
        echo(f"starting an engine for {config.model} (log: {log})", err=True)
    async with (
        own_engine(config, log) as policy,
        agents_served(made, config, policy) as make_env,
    ):
        if not options["as_json"]:
            folders = list(parts.values())
            progress = asyncio.create_task(_say_progress(folders, len(keys) * len(folders)))
        try:
            for temperature, folder in parts.items():
                await play_all(
                    *(sitting.tasks, options["attempts"], folder, policy, make_env, config),
                    at_once=options["at_once"],
                    temperature=temperature,
                )
        finally:
            if progress is not None:
                progress.cancel()


async def _unless_interrupted(playing: Coroutine[Any, Any, None]) -> None:
    """Awaits `playing`. Reports Ctrl-C as an interrupt, even if Ctrl-C ended the engine too."""
    try:
        await playing
    except EngineDead:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise


async def _say_progress(folders: list[EvaluationFolder], total: int) -> None:
    """Prints every few seconds how many attempts are done."""
    while True:
        await asyncio.sleep(PROGRESS_S)
        done = [attempt for folder in folders for attempt in folder.done.values()]
        echo(progress_line(done, total), err=True)


def progress_line(done: list[Conversation], total: int) -> str:
    failed = sum(bool(attempt.cause) for attempt in done)
    success = sum(attempt.success for attempt in done) / max(1, len(done))
    line = f"{len(done)}/{total} attempts, success {success:.2f}"
    return line + (f", {failed} failed" if failed else "")


def _ks(text: str, most: int, limit: str) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and 1 <= int(part) <= most for part in parts):
        raise UserError(
            f"--pass-at {text}: must be numbers from 1 to {most} ({limit}), separated by commas"
        )
    return [int(part) for part in parts]


def _temperatures(options: dict[str, Any]) -> list[str]:
    """Returns --temperature as a setting."""
    if (text := options["temperatures"]) is None:
        return []
    try:
        numbers = [float(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or len({*numbers}) < len(numbers) or not all(0 <= n <= 2 for n in numbers):
        raise UserError(
            f"--temperature {text}: must be numbers from 0 to 2, each once, separated by commas"
        )
    return [f"eval.temperatures={json.dumps(numbers)}"]


def _files_checksum(model: Path) -> str:
    """Returns a checksum of the names, sizes and change times of a model folder's files, without
    its card."""
    files = sorted(path for path in model.iterdir() if path.is_file() and path.name != CARD)
    states = repr([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files])
    return f"{zlib.crc32(states.encode()):08x}"


def _default_folder(config: RunConfig, settings: Settings) -> Path:
    checksum = zlib.crc32(json.dumps(settings, sort_keys=True).encode())
    env = Path(config.env.name).name if "/" in config.env.name else config.env.name
    model = Path(config.model)
    name = model.name  # `best` or `model` if it is a run's model
    if RunFolder(model.parent).exists:
        name = f"{model.parent.name}-{name}"
    return Path("runs") / "eval" / f"{name}-{env.replace(':', '-')}-{checksum:08x}"


if __name__ == "__main__":
    main()
