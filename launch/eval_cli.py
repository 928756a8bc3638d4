"""`r3l-eval`: evaluates a model folder on an environment's tasks."""

import asyncio
import atexit
import json
import os
import sys
import zlib
from collections.abc import Coroutine, Set
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource
from msgspec import to_builtins

from launch.cli import as_overrides, as_typed
from launch.evaluation.play import keys_of, own_engine, play_all
from launch.evaluation.printing import comparison_table, conversations, table
from learner.evaluation.conversation import Conversation
from learner.evaluation.evaluation_folder import (
    EvaluationFolder,
    Settings,
    read_attempts,
    read_other,
    read_settings,
    settings_of,
)
from learner.evaluation.metrics import Report, by_task, compare, report
from r3l.errors import EngineDead, UserError
from r3l.models.model_folder import read_checksums
from r3l.records import Task
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import RunFolder, run_folder
from r3l.run.process.command_line import OneLine, echo

PROGRESS_S = 5.0
READING = {"read", "pass_at", "show", "against", "as_json"}
"""The options that can be given with --read."""
AGAIN = "run the same command again to continue"


@click.command("r3l-eval", cls=OneLine)
@click.option("--run", "run_name", help="a training run: use its settings and its model")
@click.option("--model", help="model folder, or builtin; default: the run's best, or builtin")
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
    default=200,
    show_default=True,
    help="tasks to play",
)
@click.option(
    "--attempts", type=click.IntRange(min=1), default=1, show_default=True, help="attempts per task"
)
@click.option(
    "--pass-at", default="", help="values of k for pass@k, such as 4,8; at most --attempts"
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
@click.option("--json", "as_json", is_flag=True, help="print only the report, as a JSON object")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def main(**options: Any) -> None:
    """Play tasks and print success, reward, steps, tokens and pass@k with 95 % intervals.

    For example `r3l-eval --run first`. Results are stored in a folder. The same command continues
    an interrupted evaluation. KEY=VALUE arguments are settings. eval.temperature=0 makes an
    evaluation repeatable.
    """
    try:
        if options["as_json"] and options["show"]:
            why = "prints text, but --json prints only JSON; leave one of them out"
            raise UserError(f"--show: {why}")
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

    config = _configured(options)
    attempts, ks = options["attempts"], _ks(options["pass_at"], options["attempts"], "--attempts")
    tasks = tasks_of_all(config.env, options["split"], options["count"])
    saved = read_checksums(Path(config.model))
    step = f"step {saved.step}" if saved else ""
    if step and not options["as_json"]:
        echo(f"{config.model}: weights of {step}", err=True)
    settings = settings_of(
        config,
        model=config.model,
        weights=" ".join(filter(None, (step, _files_checksum(Path(config.model))))),
        split=options["split"],
    )
    others = _others(options, {task.task_id for task in tasks}, settings)
    keys, place = keys_of(tasks, attempts), options["out"] or _default_folder(config, settings)
    with closing(EvaluationFolder(place, settings)) as folder:
        if folder.missing(keys):
            # The engine's libraries report leaks when this process exits: below the results.
            atexit.register(os.dup2, os.open(os.devnull, os.O_WRONLY), 2)
            asyncio.run(_unless_interrupted(_play(tasks, attempts, folder, config, options)))
    played = [folder.done[key] for key in keys]
    result = report(played, ks)
    folder.finish(result)
    _print(options, result, played, others)
    if not options["as_json"]:
        echo(f"attempts and report: {place}")


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
    _print(options, report(attempts, ks), attempts, _others(options, tasks.keys(), settings))


def _others(options: dict[str, Any], tasks: Set[str], settings: Settings) -> list[Conversation]:
    """Returns the attempts of the evaluation in --against; [] if the option is not given."""
    return read_other(options["against"], tasks, settings) if options["against"] else []


def _print(
    options: dict[str, Any],
    result: Report,
    attempts: list[Conversation],
    others: list[Conversation],
) -> None:
    compared = compare(attempts, others) if others else {}
    if options["as_json"]:
        against = {"against": to_builtins(compared)} if compared else {}
        echo(json.dumps(to_builtins(result) | against))
        return
    echo(table(result))
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
    settings_file = None if trained is None else RunFolder(trained).started().own_config
    config = configuration.load(
        settings_file,
        [*as_overrides(named), *alone, *options["overrides"]],
        demo=None if trained else DEMO,
    )
    model = model_folder(config.model)
    check_agent(config, chat_format(config, model))
    check_engine_arguments(config.actor)
    return config.model_copy(update={"model": str(model)})


def _model_of(run: Path) -> str:
    """Finds a run's best model or else its last. Raises UserError if it has neither."""
    RunFolder(run).started()
    for folder in (run / "best", run / "model"):
        if (folder / "config.json").is_file():
            return str(folder)
    raise UserError(
        f"--run {run}: has no model/ yet; the run's last step writes it; wait, or give a model "
        "folder with --model"
    )


async def _play(
    tasks: list[Task],
    attempts: int,
    folder: EvaluationFolder,
    config: RunConfig,
    options: dict[str, Any],
) -> None:
    from actors.agents.agent_attempt import agents_served
    from envs.isolation.pool import environments_of_all

    at_once, progress, log = options["at_once"], None, folder.folder / "engine.log"
    if not options["as_json"]:
        echo(f"starting an engine for {config.model} (log: {log})", err=True)
    async with (
        environments_of_all(config.env, at_once) as made,
        own_engine(config, log) as policy,
        agents_served(made, config, policy) as make_env,
    ):
        if not options["as_json"]:
            progress = asyncio.create_task(_say_progress(folder, len(tasks) * attempts))
        try:
            await play_all(tasks, attempts, folder, policy, make_env, config, at_once=at_once)
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


async def _say_progress(folder: EvaluationFolder, total: int) -> None:
    """Prints every few seconds how many attempts are done."""
    while True:
        await asyncio.sleep(PROGRESS_S)
        echo(progress_line(list(folder.done.values()), total), err=True)


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


def _files_checksum(model: Path) -> str:
    """Returns a checksum of the names, sizes and change times of a model folder's files."""
    files = sorted(path for path in model.iterdir() if path.is_file())
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
