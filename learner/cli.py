"""`r3l-learner`: trains a run, warms up a model, and inspects finished runs."""

import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import click

from buffer.storage.store_path import check_store, store_path
from learner.exit_codes import EXIT_CODES
from learner.metrics.loggers import registry as loggers
from learner.offline.regrade import regrade_command
from learner.warmup.cli import warmup_command
from learner.watchdog import Watchdog
from r3l.errors import RestartNeeded, UserError
from r3l.models.model_folder import check_model_folder, model_digest, read_tokenizer
from r3l.models.model_path import model_path
from r3l.records import Task
from r3l.rollout.agent_chat import add_tools
from r3l.rollout.chat import ChatFormat
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import JOURNAL, ProcessStatus, RunFolder, run_folder
from r3l.run.process.command_line import OneLineGroup, echo, version_option
from r3l.run.process.endpoints import check_bind, check_endpoint
from r3l.run.process.memory import delay_collections, freeze_heap, keep_memory_steady
from r3l.run.process.pinned_versions import warn_of_other_versions
from r3l.run.process.steady_threads import STEADY_THREADS
from r3l.run.process.torch_exit import end_process
from r3l.run.settings.learner import LearnerConfig
from r3l.weights.journal import Journal

LATER_S = 3.0
"""Seconds that one of several ranks waits before it exits with an error that another rank may have
caused. DeepSpeed's launcher then sees that rank's exit first."""


class _Commands(OneLineGroup):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not (args or kwargs):  # a program that passes arguments is not this command
            keep_memory_steady()
        try:
            return super().__call__(*args, **kwargs)
        except SystemExit as ended:
            end_process(int(ended.code or 0))

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except tuple(EXIT_CODES) as error:
            if not (_leading() or isinstance(error, RestartNeeded)):
                _let_rank_0_speak()
            echo(f"r3l-learner: {error}", err=True)
            sys.exit(EXIT_CODES[type(error)])
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except Exception:
            if os.environ.get("WORLD_SIZE", "1") != "1":
                time.sleep(LATER_S)
            raise


@click.group("r3l-learner", cls=_Commands)
@version_option
def main() -> None:
    """Train a policy (`train`, `warmup`), or work on a finished run (`weights`, `replay`,
    `regrade`)."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    os.environ |= STEADY_THREADS  # before torch is imported


main.add_command(warmup_command)
main.add_command(regrade_command)


@main.command()
@click.option("--config", "config_path", type=Path, required=True, help="the run's config.yaml")
@click.option("--buffer", "buffer_endpoint", help="buffer service, tcp://host:port")
@click.option("--weights", "weights_bind", help="address to publish weights on, tcp://…")
@click.option(
    "--offline",
    "stores",
    type=store_path,
    multiple=True,
    help="store of a finished run to train from, without actors; may be given several times",
)
@click.option("--run", type=Path, required=True, help="run folder for metrics and checkpoints")
@click.option("--resume", is_flag=True, help="continue from the newest checkpoint")
@click.option("--keys", type=Path, help="folder that r3l-buffer keygen wrote, for other hosts")
def train(
    config_path: Path,
    buffer_endpoint: str | None,
    weights_bind: str | None,
    stores: tuple[Path, ...],
    run: Path,
    resume: bool,
    keys: Path | None,
) -> None:
    """Train one rank on groups from the buffer, or from the stores of finished runs."""
    config = configuration.load(config_path)
    if stores and (buffer_endpoint or weights_bind):
        raise UserError("--offline trains without actors; leave --buffer and --weights out")
    with Watchdog(config.learner.hang_s, run if _leading() else None), ExitStack() as stack:
        if stores:
            _train_offline(config, stores, run, stack, resume=resume)
        elif buffer_endpoint and weights_bind:
            check_endpoint(buffer_endpoint, "buffer")
            check_bind(weights_bind, "weights", encrypted=keys is not None)
            start = _start(config, run, resume)
            _Rank(config, run, start, stack, buffer_endpoint, weights_bind, keys).train()
        else:
            raise UserError("train needs --buffer and --weights, or --offline STORE")


def _train_offline(
    config: RunConfig, stores: Sequence[Path], run: Path, stack: ExitStack, *, resume: bool
) -> None:
    """Trains one rank on the stores of finished runs, without actors."""
    from learner.offline.served_copy import served_copy, without_actors

    loggers.check_entries(config.log)
    for store in stores:
        check_store(store)
    start, endpoint = _start(config, run, resume), ""
    given, config = config, without_actors(config)
    if _leading():
        folder = RunFolder(run)
        served = served_copy(stores, folder.store, config, start.tokenizer, resume=resume)
        endpoint = stack.enter_context(served)
        folder.write_settings(given)
    _Rank(config, run, start, stack, endpoint, "tcp://127.0.0.1:0", actors=False).train()


def _leading() -> bool:
    """Returns whether this process is rank 0."""
    return os.environ.get("RANK", "0") == "0"


def _let_rank_0_speak() -> None:
    """Gives rank 0 time to report an error that all ranks have; DeepSpeed's launcher then ends this
    rank. Returns if only this rank has the error, such as one of a loss. This rank must then report
    it."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(LATER_S)


@dataclass(frozen=True)
class Start:
    """The starting point of a run. `checkpoint`: None if the run starts from step 0."""

    model: Path
    model_digest: str
    tokenizer: Any
    settings: LearnerConfig
    checkpoint: Path | None


def _start(config: RunConfig, run: Path, resume: bool) -> Start:
    """Checks all that can be checked before the model is loaded. Raises UserError."""
    from learner import checkpoint, checkpoint_command
    from learner.step.lora_targets import check_targets
    from r3l.training.model import resolve_dtype

    try:
        run.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--run {run}: cannot be written ({error.strerror})") from None
    model = model_path(config.model)
    check_model_folder(model, f"model {config.model}")
    tokenizer = read_tokenizer(model, f"model {config.model}")
    if config.env.has_agents and config.actor.agent.tool_parser != "none":
        add_tools(ChatFormat(tokenizer, earlier_reasoning=config.actor.earlier_reasoning))
    check_targets(config.learner.lora, model)
    if _leading():
        warn_of_other_versions("deepspeed", "torch", "peft")
        checkpoint_command.check_command(config.learner.on_checkpoint)
    budget = RunFolder(run).token_budget(config.learner.tokens_per_micro_batch)
    settings = config.learner.model_copy(update={"tokens_per_micro_batch": budget})
    digest = model_digest(model)
    folder = run / checkpoint.CHECKPOINTS
    newest = checkpoint.latest(folder, thorough=True) if resume else None
    if resume and newest is None and any(folder.glob("step-*")):
        raise UserError(
            f"{folder}: every checkpoint is damaged; restore one, or remove all to begin again"
        )
    if newest is not None:
        checkpoint.check_resumable(
            newest, settings, dtype=resolve_dtype(settings.dtype), model_digest=digest
        )
    return Start(model, digest, tokenizer, settings, newest)


@dataclass
class _Rank:
    """One rank's part in a run."""

    config: RunConfig
    run: Path
    start: Start
    stack: ExitStack
    buffer_endpoint: str
    weights_bind: str
    keys: Path | None = None
    actors: bool = True

    def train(self) -> None:
        """Trains until the final model is written."""
        from learner.checkpoint import load_run
        from learner.loop import Training

        publisher = self._publisher() if _leading() else None
        config, start = self.config, self.start
        algorithm = config.algorithm
        trainer, state = load_run(
            start.checkpoint, start.model, start.settings, algorithm, config.seed
        )
        if start.checkpoint is None:
            state = replace(state, model_digest=start.model_digest)
        if publisher is None:
            _on_stop_signals(signal.SIG_IGN)  # rank 0 ends the run
        rank0 = publisher and self._rank0(trainer, publisher, state.version)
        freeze_heap()
        try:
            Training(trainer, algorithm, config, rank0, start.tokenizer, self.run, state).execute()
        except RestartNeeded as error:
            if (budget := error.facts.get("tokens_per_micro_batch")) is not None:
                RunFolder(self.run).keep_token_budget(int(budget))
            raise
        if publisher is not None:
            self._report("done", publisher.endpoint)

    def _publisher(self) -> Any:
        from learner.publishing.publisher import WeightPublisher
        from r3l.weights.ray_store import RayStore

        kept = self.config.learner.journal_versions
        journal = Journal(self.run / JOURNAL, versions=kept) if kept else None
        publisher = WeightPublisher(
            self.weights_bind,
            anchor_every=self.config.learner.anchor_every,
            keys=self.keys and self.keys / "service.json",
            journal=journal,
            deadline_s=self.config.learner.hang_s,
            keyed_bulk=self.config.actor.weights.bulk == "keyed",
        )
        if self.config.actor.weights.transport == "ray":
            publisher.store = RayStore(publisher.origin, publisher.bulk_key)
        self.stack.callback(publisher.close)
        return publisher

    def _report(self, state: Literal["ready", "done"], weights: str) -> None:
        echo(f"r3l-learner {state}, weights at {weights}")
        RunFolder(self.run).report("learner", ProcessStatus(state, weights))

    def _rank0(self, trainer: Any, publisher: Any, version: int) -> Any:
        from buffer import BufferClient
        from envs.registry import tasks_of_all
        from learner.metrics.loggers.logger import LoggerContext
        from learner.metrics.reporter import Reporter
        from learner.rank0 import Rank0
        from r3l.training.measures.processor import facts

        config, run = self.config, self.run
        tasks = list[Task](), list[Task]()
        if self.actors:
            tasks = (
                tasks_of_all(config.env, "train", config.env.train_tasks, config.seed),
                tasks_of_all(config.env, "eval", config.eval.tasks),
            )
        client = BufferClient(
            self.buffer_endpoint,
            name="learner",
            keys=self.keys and self.keys / "learner.json",
            timeout_s=config.buffer.patience_s,
        )
        self.stack.callback(client.close)
        name = config.algorithm.name
        reporter = Reporter(
            run,
            version,
            loggers.start(LoggerContext(run, config, version)),
            own=name if ".py:" in name else "",
        )
        self.stack.callback(reporter.close)
        RunFolder(run).add_machine(version, facts(trainer.device, trainer.world))
        gpus = trainer.world if trainer.device.type == "cuda" else 0
        rank0 = Rank0(
            trainer, client, publisher, reporter, config, tasks, run, actors=self.actors, gpus=gpus
        )
        _on_stop_signals(lambda signum, frame: rank0.stop())
        self._report("ready", publisher.endpoint)
        return rank0


def _on_stop_signals(handler: Any) -> None:
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, handler)


@main.command("weights")
@click.argument("run", type=run_folder)
@click.option("--version", type=click.IntRange(0), required=True, help="optimizer steps done")
@click.option("--out", type=Path, required=True, help="model folder to write, must not exist")
def weights_command(run: Path, version: int, out: Path) -> None:
    """Rebuild a published version of RUN from its journal, bit for bit."""
    from learner.offline.rebuild import write_version

    echo(write_version(run, RunFolder(run).settings_of(version), version, out))


@main.command("replay")
@click.argument("run", type=run_folder)
@click.argument("step", type=click.IntRange(1))
def replay_command(run: Path, step: int) -> None:
    """Recompute the steps of RUN up to STEP, from the newest checkpoint before STEP. Compare losses
    and weights with the recorded ones. Exit code 1 if something differs."""
    from learner.offline.replayed_run import ReplayedRun

    same, said = True, ""
    with closing(ReplayedRun(run, step)) as replayed:
        while replayed.version < step:
            if (note := replayed.elsewhere()) and note != said:
                echo(f"step {replayed.version + 1}: {note}")
                said = note
            done = replayed.advance()
            echo(done.line())
            same = same and all(done.same.values())
    if not same:
        sys.exit(1)


if __name__ == "__main__":
    delay_collections()
    main()
