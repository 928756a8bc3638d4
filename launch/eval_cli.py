"""`r3l-eval`: the evaluation of a model folder, or a running engine, on an environment's tasks."""

from __future__ import annotations

import asyncio
import json
import sys
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import click

from launch.cli import as_typed
from r3l import config as configuration
from r3l.config import RunConfig
from r3l.errors import EngineDead, UserError
from r3l.process.file_modes import set_file_modes
from r3l.records import Task
from r3l.rollout.interfaces import Policy


@click.command()
@click.option("--model", default="builtin", show_default=True, help="model folder, or builtin")
@click.option("--engine", help="URL of a running vLLM server of that model; default: start one")
@click.option(
    "--env",
    "env_name",
    default="workshop",
    show_default=True,
    help="environment, by name or path/to/file.py:Class",
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
@click.option("--seed", type=int, default=0, show_default=True, help="sampling seed")
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
@click.option("--json", "as_json", is_flag=True, help="print the report as one JSON object")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def main(**options: Any) -> None:
    """Play tasks, and print success, reward, steps, tokens and pass@k with 95 % intervals.

    Results are kept in a folder: the same command continues an interrupted evaluation. KEY=VALUE
    arguments are settings; eval.temperature=0 makes an evaluation repeatable.
    """
    try:
        set_file_modes()
        run(options)
    except UserError as error:
        typed = {"model": options["model"], "env": options["env_name"], "seed": options["seed"]}
        click.echo(f"r3l-eval: {as_typed(str(error), typed, options['overrides'])}", err=True)
        sys.exit(2)
    except EngineDead as error:
        click.echo(f"r3l-eval: {error}; run the same command again to continue", err=True)
        sys.exit(1)


def run(options: dict[str, Any]) -> None:
    """Run the evaluation that the command line asks for. Raises UserError, EngineDead."""
    from actors.engine_arguments import check_engine_arguments
    from envs.registry import tasks as tasks_of
    from launch.evaluation import Results, cut_off, report, table
    from launch.plan import DEMO, resolve_model

    env_name = json.dumps(options["env_name"], ensure_ascii=False)
    model_name = json.dumps(options["model"], ensure_ascii=False)
    shortcuts = [f"env={env_name}", f"seed={options['seed']}", *options["overrides"]]
    config = configuration.load(None, [f"model={model_name}", *shortcuts], demo=DEMO)
    model = resolve_model(
        options["model"], config.actor.earlier_reasoning, weights=options["engine"] is None
    )
    check_engine_arguments(config.actor)
    config = config.model_copy(update={"model": str(model)})
    attempts, ks = options["attempts"], _ks(options["pass_at"], options["attempts"])
    tasks = tasks_of(config.env.name, config.env.options, options["split"], options["count"])
    settings = _settings(config, options)
    folder = options["out"] or _default_folder(config, settings)
    results = Results(folder, settings)
    try:
        wanted = {(task.task_id, n) for task in tasks for n in range(attempts)}
        if wanted - results.done.keys():
            asyncio.run(_play(tasks, attempts, results, config, options))
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


async def _play(
    tasks: list[Task], attempts: int, results: Any, config: RunConfig, options: dict[str, Any]
) -> None:
    from envs.isolation.pool import environments
    from launch.evaluation import play_all

    engine, at_once = options["engine"], options["at_once"]
    async with environments(config.env, at_once) as make_env, _policy(config, engine) as policy:
        await play_all(tasks, attempts, results, policy, make_env, config, at_once=at_once)


@asynccontextmanager
async def _policy(config: RunConfig, engine: str | None) -> AsyncIterator[Policy]:
    """The policy of the engine at a URL, or of an engine started here."""
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
        from actors.engine import VLLMPolicy

        own = VLLMPolicy.start(Path(config.model), config.actor, seed=config.seed)
        try:
            yield own
        finally:
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
    name = config.env.name.replace("/", "-").replace(":", "-")
    return Path("runs") / "eval" / f"{Path(config.model).name}-{name}-{stamp:08x}"


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
