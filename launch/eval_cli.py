"""`r3l-eval`: the evaluation of a model folder, or a running engine, on an environment's tasks."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import zlib
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import click

from launch.cli import as_overrides, as_typed, check_not_empty
from r3l import config as configuration
from r3l.algorithms.advantages import SUCCESS
from r3l.config import RunConfig
from r3l.errors import EngineDead, UserError
from r3l.process.command_line import OneLine
from r3l.process.file_modes import set_file_modes
from r3l.records import Task
from r3l.rollout.interfaces import Policy

PROGRESS_S = 5.0
AGAIN = "run the same command again to continue"


@click.command("r3l-eval", cls=OneLine)
@click.option("--run", "run_name", help="a training run: its settings and its model")
@click.option(
    "--weights",
    type=click.Choice(["best", "last"]),
    default="best",
    show_default=True,
    help="which model of --run: of its best evaluation, or of its last step",
)
@click.option("--model", help="model folder, or builtin; default: the run's, or builtin")
@click.option("--engine", help="URL of a running vLLM server of that model; default: start one")
@click.option(
    "--env",
    "env_name",
    help="environment, by name or path/to/file.py:Class; it is the only one then; "
    "default: all of the run's, or workshop",
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
    type=click.IntRange(min=1),
    default=200,
    show_default=True,
    help="tasks to play",
)
@click.option(
    "--attempts", type=click.IntRange(min=1), default=1, show_default=True, help="per task"
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
    help="attempts at the same time",
)
@click.option("--out", type=Path, help="folder for the results; default: one under runs/eval")
@click.option(
    "--step", type=int, default=0, show_default=True, help="step of the metrics in TensorBoard"
)
@click.option("--json", "as_json", is_flag=True, help="print only the report, as a JSON object")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def main(**options: Any) -> None:
    """Play tasks, and print success, reward, steps, tokens and pass@k with 95 % intervals.

    For example `r3l-eval --run first`. Results are kept in a folder: the same command continues an
    interrupted evaluation. KEY=VALUE arguments are settings; eval.temperature=0 makes an evaluation
    repeatable.
    """
    try:
        set_file_modes()
        run(options)
    except UserError as error:
        typed = {"model": options["model"], "env": options["env_name"], "seed": options["seed"]}
        click.echo(f"r3l-eval: {as_typed(str(error), typed, options['overrides'])}", err=True)
        sys.exit(2)
    except EngineDead as error:
        click.echo(f"r3l-eval: {error}; {AGAIN}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo(f"r3l-eval: interrupted; {AGAIN}", err=True)
        sys.exit(130)


def run(options: dict[str, Any]) -> None:
    """Run the evaluation that the command line asks for. Raises UserError, EngineDead."""
    from actors.engine_arguments import check_engine_arguments
    from envs.registry import tasks_of_all
    from launch.evaluation.played_tasks import Results, cut_off, report, table
    from launch.plan import DEMO, resolve_model, run_folder

    check_not_empty({"--env": options["env_name"], "--model": options["model"]})
    trained = None if options["run_name"] is None else run_folder(options["run_name"])
    model_name = options["model"] or (trained and _model_of(trained, options["weights"]))
    named = {"model": model_name or "builtin", "env": options["env_name"], "seed": options["seed"]}
    alone = [] if options["env_name"] is None else ["env.others={}"]
    settings_file, demo = (None, DEMO) if trained is None else (trained / "config.yaml", None)
    config = configuration.load(
        settings_file, [*as_overrides(named), *alone, *options["overrides"]], demo=demo
    )
    model = resolve_model(
        config.model, config.actor.earlier_reasoning, weights=options["engine"] is None
    )
    check_engine_arguments(config.actor)
    config = config.model_copy(update={"model": str(model)})
    attempts, ks = options["attempts"], _ks(options["pass_at"], options["attempts"])
    tasks = tasks_of_all(config.env, options["split"], options["count"])
    settings = _settings(config, options)
    folder = options["out"] or _default_folder(config, settings)
    results = Results(folder, settings)
    try:
        wanted = {(task.task_id, n) for task in tasks for n in range(attempts)}
        if wanted - results.done.keys():
            asyncio.run(
                _unless_interrupted(_play(tasks, attempts, results, config, options, folder))
            )
    finally:
        results.close()
    ordered = [results.done[task.task_id, n] for task in tasks for n in range(attempts)]
    found = report(ordered, attempts, ks)
    (folder / "report.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    _to_tensorboard(folder, found, options["step"])
    click.echo(json.dumps(found) if options["as_json"] else table(found))
    if warning := cut_off(found):
        click.echo(f"r3l-eval: {warning}", err=True)
    if not options["as_json"]:
        click.echo(f"results, report and TensorBoard metrics: {folder}")


def _model_of(run: Path, weights: str) -> str:
    """The model folder of a run. Raises UserError if there is none."""
    if not (run / "config.yaml").is_file():
        raise UserError(f"--run {run}: has no config.yaml, so it is not a run; check the name")
    wanted = [run / "best", run / "model"] if weights == "best" else [run / "model"]
    found = next((folder for folder in wanted if (folder / "config.json").is_file()), None)
    if found is None:
        raise UserError(
            f"--run {run}: has no {wanted[-1].name}/ yet, which its last step writes; "
            "wait for it, or give a model folder with --model"
        )
    return str(found)


async def _play(
    tasks: list[Task],
    attempts: int,
    results: Any,
    config: RunConfig,
    options: dict[str, Any],
    folder: Path,
) -> None:
    from envs.isolation.pool import environments_of_all
    from launch.evaluation.played_tasks import play_all

    at_once, said = options["at_once"], None
    async with (
        environments_of_all(config.env, at_once) as make_env,
        _policy(config, options, folder) as policy,
    ):
        if not options["as_json"]:
            said = asyncio.create_task(_say_progress(results, len(tasks) * attempts))
        try:
            await play_all(tasks, attempts, results, policy, make_env, config, at_once=at_once)
        finally:
            if said is not None:
                said.cancel()


async def _unless_interrupted(playing: Coroutine[Any, Any, None]) -> None:
    """Ctrl-C ends the engine too; then its end is not the failure that is told."""
    try:
        await playing
    except EngineDead:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError from None
        raise


async def _say_progress(results: Any, total: int) -> None:
    """Every few seconds, say how many attempts are done."""
    while True:
        await asyncio.sleep(PROGRESS_S)
        click.echo(progress_line(list(results.done.values()), total), err=True)


def progress_line(done: list[Any], total: int) -> str:
    """How far an evaluation is: its attempts that ended, and their success so far."""
    failed = sum(bool(result.cause) for result in done)
    success = sum(result.reward >= SUCCESS for result in done) / max(1, len(done))
    line = f"{len(done)}/{total} attempts, success {success:.2f}"
    return line + (f", {failed} failed" if failed else "")


@contextmanager
def _into(log: Path) -> Iterator[None]:
    """Within it the output of this process goes to a file; that of processes started within it
    always does."""
    own = [(fd, os.dup(fd)) for fd in (1, 2)]
    with log.open("ab") as file:
        for fd, _ in own:
            os.dup2(file.fileno(), fd)
    try:
        yield
    finally:
        for fd, original in own:
            os.dup2(original, fd)
            os.close(original)


@asynccontextmanager
async def _policy(
    config: RunConfig, options: dict[str, Any], folder: Path
) -> AsyncIterator[Policy]:
    """The policy of the engine at a URL, or of an engine started here, whose log is a file."""
    engine = options["engine"]
    if engine is not None:
        from actors.http_policy import ServedPolicy

        served = await ServedPolicy.connect(
            engine, Path(config.model), config.actor.earlier_reasoning
        )
        try:
            yield served
        finally:
            await served.aclose()
    else:
        log = folder / "engine.log"
        if not options["as_json"]:
            click.echo(f"starting an engine for {config.model} (log: {log})", err=True)
        try:
            with _into(log):
                from actors.engine import VLLMPolicy

                own = VLLMPolicy.start(Path(config.model), config.actor, seed=config.seed)
        except EngineDead as error:
            raise EngineDead(f"{error} (log: {log})") from error
        try:
            yield own
        finally:
            with _into(log):
                own.close()


def _ks(text: str, attempts: int) -> list[int]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and 1 <= int(part) <= attempts for part in parts):
        raise UserError(
            f"--pass-at {text}: must be numbers from 1 to --attempts {attempts}, separated by "
            "commas"
        )
    return [int(part) for part in parts]


def _settings(config: RunConfig, options: dict[str, Any]) -> dict[str, Any]:
    """The settings that results depend on; all results of one folder must share them."""
    values = config.model_dump(mode="json")
    return {
        "model": config.model,
        "weights": _weights_stamp(Path(config.model)),
        "engine": options["engine"] or "",
        "env": values["env"],
        "split": options["split"],
        "seed": config.seed,
        "temperature": config.eval.temperature,
        "actor": {
            name: values["actor"][name]
            for name in (
                "max_response_tokens",
                "max_model_len",
                "dtype",
                "engine",
                "earlier_reasoning",
            )
        },
    }


def _weights_stamp(model: Path) -> str:
    """A stamp that changes with the files of a model folder."""
    files = sorted(path for path in model.iterdir() if path.is_file())
    stamp = repr([(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files])
    return f"{zlib.crc32(stamp.encode()):08x}"


def _default_folder(config: RunConfig, settings: dict[str, Any]) -> Path:
    stamp = zlib.crc32(json.dumps(settings, sort_keys=True).encode())
    env = Path(config.env.name).name if "/" in config.env.name else config.env.name
    model = Path(config.model)
    name = model.name  # that of a run's model is best or model
    if (model.parent / "config.yaml").is_file():
        name = f"{model.parent.name}-{name}"
    return Path("runs") / "eval" / f"{name}-{env.replace(':', '-')}-{stamp:08x}"


def _to_tensorboard(folder: Path, found: dict[str, Any], step: int) -> None:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(folder / "tensorboard")) as writer:
        for family, values in {"": found["all"], **found["families"]}.items():
            for name, value in values.items():
                if isinstance(value, dict) and value.get("mean") is not None:
                    tag = f"eval/{name.replace('@', '_at_')}" + (f"/{family}" if family else "")
                    for part in ("mean", "low", "high"):
                        suffix = "" if part == "mean" else f"_{part}"
                        writer.add_scalar(tag + suffix, value[part], step)


if __name__ == "__main__":
    main()
