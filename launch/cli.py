"""`r3l-launch`: starts a run, or inspects one.

`train` is the default command: it runs if the first argument is an option or KEY=VALUE.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from launch.backends.registry import BACKENDS, LOCAL, backend
from r3l.errors import R3LError, TrainingStopped, UserError
from r3l.run.process.command_line import OneLineGroup, echo, tell, version_option

if TYPE_CHECKING:
    from launch.agent_function import Agent, Tasks
    from r3l.run.config import RunConfig


SHORTCUTS = ("env", "model", "learner.steps", "seed", "actor.engine.tensor_parallel_size")
"""The settings behind the options --env, --model, --steps, --seed and --actor-gpus, in order."""
DEFAULT = "train"
INSPECTIONS = ("status", "doctor", "report")
"""Commands. NAME is in the module launch.inspection.NAME, which is imported on first use."""
NAMES = ", ".join([DEFAULT, *INSPECTIONS])


class LaunchCommands(OneLineGroup):
    """The default command `train`, and the commands in INSPECTIONS."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Puts `train` in front of the arguments unless they start with a command."""
        named = args and not args[0].startswith("-") and "=" not in args[0]
        return super().parse_args(ctx, args if named else [DEFAULT, *args])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command:
        """Returns a command. Raises click.UsageError if the name is unknown."""
        if cmd_name in self.commands:
            return self.commands[cmd_name]
        if cmd_name not in INSPECTIONS:
            ctx.fail(f"{cmd_name!r} is neither a setting KEY=VALUE nor a command ({NAMES})")
        command: click.Command = getattr(import_module(f"launch.inspection.{cmd_name}"), cmd_name)
        return command

    def explain(self, error: click.UsageError) -> str:
        """Names the setting that was given as an option, such as --learning-rate."""
        of_train = error.ctx is not None and error.ctx.info_name == DEFAULT
        if not isinstance(error, click.NoSuchOption) or not of_train:
            return ""
        from r3l.run.config import RunConfig
        from r3l.settings.error_text import setting_called

        key = setting_called(error.option_name, RunConfig)
        return f"No such option {error.option_name!r}; give a setting as {key}=VALUE" if key else ""


main = LaunchCommands("r3l-launch", errors={R3LError: 1, OSError: 1})  # damage, a full disk


@main.command(DEFAULT, epilog=f"Commands, each with a --help of its own: {NAMES}.")
@click.option(
    "--actors", type=click.IntRange(min=1), default=1, show_default=True, help="actor processes"
)
@click.option(
    "--learner",
    default="1cpu",
    show_default=True,
    help="ranks and device, such as 1cpu, 8gpu or 2x8gpu (machines x GPUs)",
)
@click.option(
    "--actor-gpus", type=click.IntRange(1, 64), help="GPUs over which each actor's engine is split"
)
@click.option("--env", "env_name", help="environment, by name or path/to/file.py:Class")
@click.option(
    "--model", help="model folder, org/name[@revision] of the hub, GGUF file, smollm2 or builtin"
)
@click.option("--config", "config_path", type=Path, help="YAML file of settings")
@click.option("--preset", help="a shipped file of settings, such as paper-alfworld")
@click.option("--steps", type=int, help="optimizer steps")
@click.option("--seed", type=int, help="seed of the whole run")
@click.option("--run", "run_name", help="name under runs/, or a path; default: the time")
@click.option("--resume", is_flag=True, help="continue an existing run")
@click.option(
    "--force",
    is_flag=True,
    help="resume even with another environment, algorithm, seed, groups per step or model; start "
    "even if the run may not fit into GPU memory",
)
@click.option(
    "--buffer",
    "buffer_bind",
    default="tcp://127.0.0.1:*",
    show_default=True,
    help="address of the buffer service; *: any free port",
)
@click.option(
    "--weights",
    "weights_bind",
    default="tcp://127.0.0.1:*",
    show_default=True,
    help="address of the weight publisher; *: any free port",
)
@click.option(
    "--keys",
    type=Path,
    help="folder of keys, made by r3l-buffer keygen; default: made in the run's folder if needed",
)
@click.option("--yes", is_flag=True, help="download a model or data set of the hub without asking")
@click.option(
    "--quiet", is_flag=True, help="print only what needs attention, and how the run ended"
)
@click.option("--check", is_flag=True, help="check the run, report the first fault, and exit")
@click.option(
    "--dry-run", is_flag=True, help="print the place and the command of every process, and exit"
)
@click.option(
    "--hardware",
    help="with --dry-run or --cluster slurm: plan for machines like 2x8x80GB (machines x GPUs x "
    "memory) or 8cpu",
)
@click.option(
    "--cluster",
    type=click.Choice(list(BACKENDS)),
    default=LOCAL,
    show_default=True,
    help="local: this machine; slurm: write a batch script for the nodes of --hardware, and exit; "
    "ray: the Ray cluster whose head node is this machine",
)
@click.option("--print-config", is_flag=True, help="print every setting as YAML and exit")
@click.option("--show-prompts", is_flag=True, help="print every prompt of the environment and exit")
@version_option
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def train_command(
    *,
    actor_gpus: int | None,
    env_name: str | None,
    model: str | None,
    config_path: Path | None,
    preset: str | None,
    steps: int | None,
    seed: int | None,
    run_name: str | None,
    resume: bool,
    quiet: bool,
    check: bool,
    print_config: bool,
    show_prompts: bool,
    overrides: tuple[str, ...],
    **places: Any,
) -> None:
    """Train a policy. Without arguments: the demo, a tiny policy in its built-in world.

    Settings come from the defaults, a YAML file or preset, the options, and KEY=VALUE arguments
    such as algorithm=grpo or learner.lr=1e-5. Each source overrides the sources before it. For
    the shipped policy, the defaults are the demo's. docs/configuration.md lists all settings.
    """
    named = dict(zip(SHORTCUTS, (env_name, model, steps, seed, actor_gpus), strict=True))
    try:
        from launch.checks.plan_options import PlanOptions
        from launch.checks.presets import check_model_is_named, settings_file
        from launch.checks.resume import nothing_to_do
        from launch.preparation import prepare, write_run_folder
        from launch.supervisor import Run
        from r3l.run import config as configuration
        from r3l.run.files.run_folder import run_folder

        options = PlanOptions(run_folder(run_name), resume=resume, **places)
        file, demo = settings_file(config_path, preset, options.run, resume=resume)
        config = configuration.load(file, [*as_overrides(named), *overrides], demo=demo)
        output = configuration.dump(config).rstrip("\n") if print_config else ""
        output = output or (prompt_texts(config) if show_prompts else "")
        if output := output or (nothing_to_do(options.run, config) if resume else ""):
            echo(output)
            return
        check_model_is_named(config, preset)
        if sys.stderr.isatty() and not options.dry_run and not quiet:  # it takes seconds
            tell("checking the settings, the model and the environment …", err=True)
        plan, starter = prepare(config, options), backend(options.cluster)
        for note in plan.notes:
            tell(f"note: {note}")
        if options.dry_run:
            echo(starter.preview(plan))
            return
        if check:
            shown = (config.env.title, config.algorithm.name, plan.config.model)
            echo(f"all checks passed: {', '.join(shown)}")
            return
        children = starter.reserve(plan)
        lock = write_run_folder(plan)
        if starter.starts_later:
            echo(starter.write_script(plan))
            return
    except UserError as error:
        tell(f"r3l-launch: {as_typed(str(error), named, overrides)}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        tell("r3l-launch: interrupted; nothing was started", err=True)
        sys.exit(130)
    if not quiet:
        what = f"{config.env.title}, {config.algorithm.name}; tensorboard --logdir {plan.run}"
        shape = f"--actors {plan.actors} --learner {options.learner}"
        tell(f"run {plan.run}: {shape}, {what}/tensorboard")
    for line in plan.changed:
        tell(f"changed since: {line}")
    with lock:
        run = Run(plan, tell, starter.commands(plan), children, quiet=quiet)
        sys.exit(run.execute())


def train(
    config: RunConfig | Mapping[str, Any] | Path | str | None = None,
    *,
    agent: Agent | None = None,
    tasks: Tasks = (),
    reward: Agent | None = None,
    run: str | None = None,
    actors: int = 1,
    learner: str = "1cpu",
    resume: bool = False,
    yes: bool = False,
) -> Path:
    """Trains a policy as r3l-launch does, and returns the run's folder. Call it in the main thread.

    `config`: a RunConfig, a YAML file, or a mapping of sections or of keys such as "learner.lr".
    None means the demo, or with `resume` the run's own settings. `agent`: the agent's function,
    used instead of an environment. `reward`: a function that scores attempts. `tasks`: list, file
    or data set (docs/agents.md). `yes`: consents to downloads. Raises UserError if a check fails,
    and TrainingStopped if the run ends early.
    """
    from launch.agent_function import TASKS, agent_settings, removed_if_refused
    from launch.checks.of_command_line import check_exists_only_if
    from launch.checks.plan_options import PlanOptions
    from launch.checks.presets import settings_file
    from launch.checks.resume import nothing_to_do
    from launch.preparation import prepare, write_run_folder
    from launch.supervisor import Run
    from r3l.run import config as configuration
    from r3l.run.files.run_folder import run_folder
    from r3l.settings.section import flat_settings

    folder = run_folder(run)
    if agent is not None and isinstance(config, configuration.RunConfig):
        raise UserError("config: a run with an agent needs a mapping or a file, not a RunConfig")
    with removed_if_refused(folder / TASKS):
        if not isinstance(config, configuration.RunConfig):
            values = dict(config) if isinstance(config, Mapping) else {}
            if agent is not None:
                check_exists_only_if(folder, resume=resume)
                values |= agent_settings(agent, tasks, reward, folder)
            file = Path(config) if isinstance(config, str | Path) else None
            overrides = [f"{key}={json.dumps(v)}" for key, v in flat_settings(values).items()]
            file, demo = settings_file(file, None, folder, resume=resume)
            config = configuration.load(file, overrides, demo=demo)
        if resume and (done := nothing_to_do(folder, config)):
            tell(done)
            return folder
        plan = prepare(config, PlanOptions(folder, actors, learner, resume=resume, yes=yes))
        lock = write_run_folder(plan)
    for note in plan.notes:
        tell(f"note: {note}")
    with lock:
        code = Run(plan, tell).execute()
    if code:
        raise TrainingStopped(f"run {folder}: ended with code {code}; see the lines above")
    return folder


def prompt_texts(config: RunConfig) -> str:
    """Returns the prompt texts of the configured environments, each under a heading."""
    from envs.registry import make_any
    from r3l.rollout.prompts import Prompts

    sections = []
    for env in config.env.each():
        spec = make_any(env.name, **env.options).spec
        texts = {"system": spec.system_prompt} | Prompts(spec.prompts).texts
        of = f"{env.name} " if config.env.others else ""
        sections += [f"--- {of}{name}\n{text}" for name, text in texts.items()]
    return "\n\n".join(sections)


def as_overrides(given: Mapping[str, object]) -> list[str]:
    """Converts options to KEY=VALUE overrides. `given`: values keyed by setting, None for a missing
    option. Raises UserError if a value is empty."""
    for setting, value in given.items():
        if isinstance(value, str) and not value.strip():
            raise UserError(f"--{setting}: is empty; give a name, or leave --{setting} out")
    return [
        f"{key}={json.dumps(value, ensure_ascii=False)}"
        for key, value in given.items()
        if value is not None
    ]


def as_typed(line: str, given: Mapping[str, object], overrides: Sequence[str]) -> str:
    """In an error line, replaces a setting's name with the option that the user typed for it.

    `given`: the options' values, keyed by setting. A setting in `overrides` keeps its name.
    """
    later = {override.partition("=")[0] for override in overrides}
    for key, value in given.items():
        option = f"--{key.rpartition('.')[2]}"
        if value is None or key in later:
            continue
        begins = f"config {key}: "
        if line.startswith(begins):
            return f"{option} {value}: {line.removeprefix(begins)}"
        named = [f"{key} {shown}{end}" for shown in (value, repr(value)) for end in ": "]
        if line.startswith(tuple(named)):
            return option + line.removeprefix(key)
    return line


if __name__ == "__main__":
    main()
