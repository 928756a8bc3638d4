"""`r3l-actor`: joins one actor process to a running job."""

import asyncio
import logging
import os
import signal
import socket
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from actors.engine_process import leave_threads_to_engine
from r3l.errors import EngineDead, UserError
from r3l.models.model_folder import check_model_folder, weight_bytes
from r3l.models.model_path import model_path
from r3l.notices import notice
from r3l.run import config as configuration
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import ProcessStatus, RunFolder
from r3l.run.process.command_line import OneLine, echo, version_option
from r3l.run.process.end_with_parent import end_with_starter, name_starter
from r3l.run.process.memory import delay_collections

log = logging.getLogger(__name__)
SET_LIMIT = 4  # times the bytes of the model folder: float32 for bfloat16, and tied weights twice
LONGEST_NAME = 190  # characters; the buffer allows this and the suffix

# The engine's process imports the program it was started from before anything else. So it ends at
# once if its actor is killed during the start, not only when it misses the actor.
end_with_starter()


@click.command("r3l-actor", cls=OneLine, errors={EngineDead: 1})
@version_option
@click.option("--config", "config_path", type=Path, required=True, help="the run's config.yaml")
@click.option("--buffer", "buffer_endpoint", required=True, help="buffer service, tcp://host:port")
@click.option(
    "--weights",
    "weights_endpoint",
    required=True,
    help="weight publisher, tcp://host:port",
)
@click.option(
    "--name",
    default="",
    help="name in logs and metrics; every process adds a suffix of its own; "
    "default: actor-<host>-<pid>",
)
@click.option(
    "--keys", type=Path, help="client.json that r3l-buffer keygen wrote; for encrypted services"
)
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
def main(
    config_path: Path,
    buffer_endpoint: str,
    weights_endpoint: str,
    name: str,
    keys: Path | None,
    overrides: tuple[str, ...],
) -> None:
    """Sample groups of attempts for a running job until SIGTERM. KEY=VALUE arguments, such as
    actor.engine.tensor_parallel_size=2, change the run's settings for this actor."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s")
    name_starter()
    check_name(name)
    config = configuration.load(config_path, overrides)
    name = name or f"actor-{socket.gethostname()}-{os.getpid()}"
    own = f"{name}.{uuid.uuid4().hex[:8]}"  # unique, even among processes with the same name
    run = RunFolder(config_path.parent)
    asyncio.run(_run(run, config, buffer_endpoint, weights_endpoint, own, keys))


def check_name(name: str) -> None:
    """Raises UserError if `name` is too long for the buffer or cannot be printed."""
    if len(name) > LONGEST_NAME:
        raise UserError(
            f"--name {name[:20]!r}…: {len(name)} characters; at most {LONGEST_NAME} are allowed"
        )
    if not name.isprintable():
        raise UserError(f"--name {name!r}: has characters that cannot be printed; use others")


async def _run(
    run: RunFolder,
    config: RunConfig,
    buffer_endpoint: str,
    weights_endpoint: str,
    name: str,
    keys: Path | None,
) -> None:
    """Runs an actor until it is stopped. Starts a fresh engine after each engine failure.

    Holds no lease between two engines. Raises UserError for wrong settings. Raises EngineDead if
    too many engines failed in a row.
    """
    from actors.actor import Actor
    from actors.agents.agent_attempt import agents_served
    from actors.engine import VLLMPolicy
    from actors.engine_arguments import check_engine_arguments
    from actors.weights.load_check import LoadCheck
    from actors.weights.subscriber import WeightSubscriber
    from actors.weights.transport import transport_of
    from buffer import AsyncBufferClient
    from envs.isolation.pool import environments_of_all

    model = model_path(config.model)
    check_model_folder(model, f"model {config.model}")
    check_engine_arguments(config.actor)
    largest = SET_LIMIT * weight_bytes(model)
    subscriber = WeightSubscriber(weights_endpoint, keys=keys, set_limit=largest)
    transport = transport_of(config.actor.weights, subscriber, keys)
    patience, wanted = config.buffer.patience_s, config.actor.concurrent_requests
    metrics = ActorMetrics()
    try:
        async with (
            environments_of_all(config.env, wanted, metrics) as make_env,
            AsyncBufferClient(buffer_endpoint, name=name, keys=keys, timeout_s=patience) as client,
        ):
            failures, load_check = 0, LoadCheck()
            while True:
                actor, policy = None, None
                try:
                    policy = VLLMPolicy.start(model, config.actor, metrics, seed=config.seed)
                    policy.load_check = load_check  # shared with earlier engines
                    async with agents_served(make_env, config, policy, metrics) as make:
                        actor = Actor(name, policy, client, subscriber, make, config, transport)
                        echo(f"r3l-actor ready {name}")
                        run.report(name.rpartition(".")[0], ProcessStatus("ready", name=name))
                        with _stopped_by_signals(actor.stop):
                            return await actor.run()
                except EngineDead as dead:
                    failures = 1 if actor is not None and actor.results else failures + 1
                    metrics.engine_failures += 1
                    last = failures >= config.actor.engine_failures
                    ending = "this actor exits" if last else "a fresh engine is started"
                    notice(f"engine failure {failures} in a row: {dead}; {ending}")
                    if last:
                        raise EngineDead(
                            f"the engine failed {failures} times in a row: {dead}"
                        ) from dead
                finally:
                    if policy is not None:
                        policy.close()
    finally:
        transport.close()
        subscriber.close()


@contextmanager
def _stopped_by_signals(stop: asyncio.Event) -> Iterator[None]:
    """Makes SIGTERM, SIGINT and SIGHUP set `stop` in this context. Under nohup, SIGHUP stays
    ignored. Outside the context, the signals end the process."""
    loop = asyncio.get_running_loop()
    nohup = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    signals = (signal.SIGTERM, signal.SIGINT, *(() if nohup else (signal.SIGHUP,)))
    for signum in signals:
        loop.add_signal_handler(signum, stop.set)
    try:
        yield
    finally:
        for signum in signals:
            loop.remove_signal_handler(signum)


if __name__ == "__main__":
    delay_collections()
    leave_threads_to_engine()
    main()
