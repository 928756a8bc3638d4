"""The plan of a run, made from its options; every check happens here, before anything is
started."""

from __future__ import annotations

import fcntl
import json
import re
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from actors.engine_arguments import check_engine_arguments
from buffer.sampling import samplers, task_samplers
from buffer.wire.access import CONNECTIONS, check_connections
from buffer.wire.curve_keys import ClientKeys, ServiceKeys, generate, load
from envs.builtin.policy import builtin_policy, model_path
from envs.preflight import try_tasks
from envs.registry import tasks_of_all
from launch.inspection import versions
from launch.resume import changed_settings, write_config
from launch.topology.hostfile import Hosts, read_hosts
from launch.topology.machines import Machine, described, machines_of, this_machine
from launch.topology.memory_estimate import Estimate
from launch.topology.placement import Topology, place, place_ranks
from launch.topology.ray_nodes import ray_machines
from launch.topology.requested import RequestedPlaces, parse_learner
from learner.metrics.loggers import registry as loggers
from learner.outputs import checkpoint_command
from learner.step.deepspeed_config import deepspeed_config, user_config
from learner.step.lora_targets import check_targets
from learner.warmup.recipe import warmed_for
from r3l.config import RunConfig
from r3l.endpoints import check_bind, is_local
from r3l.errors import UserError, did_you_mean
from r3l.model_folder import check_model_folder, float32_bytes, read_tokenizer, user_path
from r3l.process.room import check_room
from r3l.records import Task
from r3l.rollout import explorers
from r3l.rollout.chat import ChatFormat, EarlierReasoning

PRESETS = Path(__file__).parent / "presets"
DEMO = PRESETS / "demo.yaml"
LOCK = ".lock"  # of a run's folder, which its launcher holds
KEYS = "keys"  # in a run's folder, if none are given and some are needed


ANY_NODE = "other nodes"
LOOPBACK = "tcp://127.0.0.1:*"


@dataclass(frozen=True)
class Plan:
    """One run: its configuration, folder, processes and endpoints.

    The endpoints are the addresses where the services listen; `keys` is the folder with their keys
    and their clients', None for a run without keys. `connections`: clients of the buffer at the
    same time.
    """

    config: RunConfig
    run: Path
    topology: Topology
    buffer_bind: str
    weights_bind: str
    resume: bool
    hosts: Hosts | None = None
    keys: Path | None = None
    connections: int = CONNECTIONS
    changed: tuple[str, ...] = ()

    @property
    def actors(self) -> int:
        """How many actors the run starts."""
        return len(self.topology.actors)


def make_plan(
    config: RunConfig,
    run: Path,
    *,
    actors: int,
    learner: str,
    buffer_bind: str,
    weights_bind: str,
    resume: bool,
    actor_gpus: int | None = None,
    actors_per_gpu: int | None = None,
    hostfile: Path | None = None,
    keys: Path | None = None,
    connections: int | None = None,
    force: bool = False,
    dry_run: bool = False,
    hardware: str | None = None,
    cluster: str | None = None,
) -> Plan:
    """The checked plan. Raises UserError for everything that can be found without starting a
    process. `force`: resume with other settings, and start what the estimate of memory refuses.
    `dry_run`: leave out what takes seconds, the chat template and the trial of the environment.
    `hardware`: plan for these machines instead of this one, and check nothing of theirs, for a
    batch script or only to look at it. `cluster`: what starts the run in place of r3l-launch."""
    check_run_folder(run, resume, may_go_on=dry_run)
    _check_binds(binds := {"--buffer": buffer_bind, "--weights": weights_bind})
    check_engine_arguments(config.actor)
    if hardware is None or cluster is not None:
        loggers.check(config.log)
        checkpoint_command.check(config.learner.on_checkpoint, here=hardware is None)
    wanted = wanted_places(config, actors, learner, actor_gpus, actors_per_gpu)
    if hardware is not None and not dry_run and cluster != "slurm":
        raise UserError(f"--hardware {hardware}: only plans; add --dry-run, or leave it out")
    hosts, machines = machines_for(wanted, hostfile, hardware, cluster)
    place_ranks(wanted, machines)
    if wanted.ranks > config.learner.groups_per_step:
        raise UserError(
            f"--learner {learner}: {wanted.ranks} ranks, but learner.groups_per_step is "
            f"{config.learner.groups_per_step}; every rank needs a group: raise groups_per_step"
        )
    samplers.check(config.buffer.sampler)
    task_samplers.make(config.buffer.tasks)
    check_shares(config)
    explorers.make(config.explorer)
    env = config.env
    first = [
        *tasks_of_all(env, "train", min(len(env.names), env.train_tasks), config.seed),
        *tasks_of_all(env, "eval", min(len(env.names), config.eval.tasks)),
    ]
    folder, chat = _model(config, dry_run=dry_run)
    named = "model" in config.model_fields_set
    config = config.model_copy(update={"model": str(folder)})
    config = check_learner(config, wanted.device)
    check_targets(config.learner.lora, folder)
    topology = place(wanted, machines, Estimate.of(config), force=force)
    elsewhere = topology.elsewhere or ((ANY_NODE,) if cluster == "ray" else ())
    keys, binds = check_keys(keys, binds, run, elsewhere)
    check_connections(connections := connections or CONNECTIONS)
    if hardware is None:
        check_room(run, float32_bytes(folder))
    changed: tuple[str, ...] = ()
    if resume:
        changed = changed_settings(run, config, force=force)
        check_checkpoint(config, run, wanted.device)
    if chat is not None:
        check_first_prompts(config, first, try_tasks(env, first, chat))
    if (foreign := foreign_world(config)) and not named:
        raise UserError(foreign)
    return Plan(
        config=config,
        run=run,
        topology=topology,
        buffer_bind=binds["--buffer"],
        weights_bind=binds["--weights"],
        resume=resume,
        hosts=hosts,
        keys=keys,
        connections=connections,
        changed=changed,
    )


def foreign_world(config: RunConfig) -> str:
    """What to say if the shipped policy is to play a world that it does not know; "" otherwise."""
    if Path(config.model) != builtin_policy():
        return ""
    known = [world.env for world in warmed_for(builtin_policy())]
    unknown = next((name for name in config.env.names if name not in known), None)
    if unknown is None:
        return ""
    return (
        f"env {unknown}: the shipped policy, which is trained without --model, knows only "
        f"{', '.join(known)}; give a --model, or make a small one for it: r3l-learner warmup "
        f"{' '.join(f'--env {name}' for name in config.env.names)} --out runs/warm"
    )


def run_folder(name: str | None) -> Path:
    """The folder of a run: a bare name lies under runs/, anything with a separator is a path; None:
    the time is its name. Raises UserError."""
    if name is not None and not name.strip():
        raise UserError("--run: the name is empty; give one, or leave --run out")
    name = name or time.strftime("%Y%m%d-%H%M%S")
    return user_path(name) if "/" in name else Path("runs") / name


def settings_file(
    config: Path | None, preset: str | None, run: Path, *, resume: bool
) -> tuple[Path | None, Path | None]:
    """(the YAML file that a run's settings come from, what lies below it if the policy is the
    shipped one), by the options of r3l-launch: `--config`, the run's own, or a preset. Raises
    UserError."""
    if preset is not None and (config is not None or resume):
        other = "--resume" if resume else "--config"
        raise UserError(f"--preset {preset}: cannot be combined with {other}; leave one out")
    if config is not None:
        return config, DEMO
    if resume:
        check_run_folder(run, resume)
        return run / "config.yaml", None
    if preset is not None:
        return preset_file(preset), None
    return None, DEMO


def preset_file(name: str) -> Path:
    """The file of a preset. Raises UserError for an unknown one."""
    known = {path.stem: path for path in sorted(PRESETS.glob("*.yaml"))}
    if name not in known:
        guess = did_you_mean(name, known)
        raise UserError(f"--preset {name}: unknown{guess}; the presets are {', '.join(known)}")
    return known[name]


def check_model_is_named(config: RunConfig, preset: str | None) -> None:
    """Raise UserError if a preset leaves the model to the user, and the user gave none."""
    if preset is not None and "model" not in config.model_fields_set:
        raise UserError(f"--preset {preset}: names no model; give its folder with --model")


def check_keys(
    folder: Path | None, binds: dict[str, str], run: Path, elsewhere: tuple[str, ...]
) -> tuple[Path | None, dict[str, str]]:
    """(the checked folder of the run's keys, where the services listen).

    If actors run `elsewhere`, on those machines, the default addresses become ones that they reach.
    If other machines can reach an address, keys are made in the run's folder unless there are some.
    Raises UserError for missing keys, and for an address that actors cannot reach. `binds`:
    addresses by their options.
    """
    if elsewhere:
        binds = {
            option: bind.replace(LOOPBACK, "tcp://0.0.0.0:*") for option, bind in binds.items()
        }
        for option, bind in binds.items():
            if is_local(bind):
                raise UserError(
                    f"{option} {bind}: actors on {elsewhere[0]} cannot reach it; give tcp://0.0.0.0:*"
                )
    if folder is None and not all(map(is_local, binds.values())):
        folder = run / KEYS
        if not folder.exists():
            return folder.resolve(), binds
    if folder is None:
        return None, binds
    load(ServiceKeys, folder / "service.json")
    load(ClientKeys, folder / "client.json")
    load(ClientKeys, folder / "learner.json")
    return folder.resolve(), binds


def check_shares(config: RunConfig) -> None:
    """Raise UserError if a share of the training tasks is that of no environment of the run."""
    for name in config.buffer.tasks.shares if config.env.others else ():
        if name not in config.env.names:
            raise UserError(
                f"buffer.tasks.shares: {name} is no environment of this run, which are "
                f"{', '.join(config.env.names)}; add it to env.others"
            )


def check_learner(config: RunConfig, device: str) -> RunConfig:
    """The configuration with the user's DeepSpeed file merged in.

    Raises UserError for a key that the learner sets itself, and for a setting that `device` does
    not support.
    """
    if config.learner.attention == "flash_attention_2" and device == "cpu":
        raise UserError(
            "learner.attention=flash_attention_2: needs a GPU; set learner.attention=sdpa"
        )
    deepspeed = user_config(config.learner.deepspeed)
    learner = config.learner.model_copy(update={"deepspeed": deepspeed})
    deepspeed_config(learner, bf16=_in_bfloat16(config, device))
    return config.model_copy(update={"learner": learner})


def check_checkpoint(config: RunConfig, run: Path, device: str) -> None:
    """Raise UserError if this run cannot continue from its newest checkpoint."""
    from learner import checkpoint
    from r3l.model_folder import fingerprint

    newest = checkpoint.latest(run / checkpoint.CHECKPOINTS)
    if newest is not None:
        dtype = "torch.bfloat16" if _in_bfloat16(config, device) else "torch.float32"
        origin = fingerprint(Path(config.model))
        checkpoint.check(newest, config.learner, dtype=dtype, origin=origin)


def _in_bfloat16(config: RunConfig, device: str) -> bool:
    chosen = config.learner.dtype
    return chosen == "bfloat16" or (chosen == "auto" and device == "gpu")


def wanted_places(
    config: RunConfig,
    actors: int,
    learner: str,
    actor_gpus: int | None = None,
    actors_per_gpu: int | None = None,
) -> RequestedPlaces:
    """The options of a topology, parsed. Raises UserError."""
    ranks, device, machines = parse_learner(learner)
    parallel = config.actor.engine.get("tensor_parallel_size")
    if parallel is not None and actor_gpus not in (None, parallel):
        raise UserError(
            f"--actor-gpus {actor_gpus}: actor.engine.tensor_parallel_size is {parallel}; leave "
            "one of them out"
        )
    gpus = parallel or actor_gpus or 1
    if not isinstance(gpus, int):
        raise UserError(f"actor.engine.tensor_parallel_size={gpus}: must be a number of GPUs")
    return RequestedPlaces(actors, ranks, device, machines, gpus, actors_per_gpu)


def machines_for(
    wanted: RequestedPlaces,
    hostfile: Path | None,
    hardware: str | None = None,
    cluster: str | None = None,
) -> tuple[Hosts | None, tuple[Machine, ...]]:
    """(the hostfile's content, the machines of a run). Raises UserError."""
    if cluster == "slurm" and hardware is None:
        raise UserError(f"--cluster {cluster}: describe its nodes with --hardware, like 2x8x80GB")
    if cluster is not None and hostfile is not None:
        raise UserError(f"--cluster {cluster}: cannot be combined with --hostfile; leave one out")
    if hardware is not None:
        if hostfile is not None:
            raise UserError(f"--hardware {hardware}: cannot be combined with --hostfile")
        machines = described(hardware)
        slots = {machine.name: len(machine.gpus) for machine in machines}
        named = Hosts(Path("hosts"), slots, machines[0].name) if len(machines) > 1 else None
        return named, machines
    if cluster == "ray":
        return ray_machines()
    if hostfile is None:
        return None, (this_machine(),)
    hosts = read_hosts(hostfile, wanted.ranks, together=(wanted.machines or 1) == 1)
    return hosts, machines_of(hosts, wanted.device)


def _model(config: RunConfig, *, dry_run: bool) -> tuple[Path, ChatFormat | None]:
    """The checked model folder of a run and its chat format, which takes seconds to read."""
    if not dry_run:
        return resolve_chat(config.model, config.actor.earlier_reasoning)
    folder = model_path(config.model)
    check_model_folder(folder, f"model {config.model}")
    return folder, None


def resolve_model(
    name: str, earlier_reasoning: EarlierReasoning = "refuse", *, weights: bool = True
) -> Path:
    """The model folder of a name. Raises UserError unless its chat template is usable and, with
    `weights`, it can be loaded."""
    return resolve_chat(name, earlier_reasoning, weights=weights)[0]


def resolve_chat(
    name: str, earlier_reasoning: EarlierReasoning = "refuse", *, weights: bool = True
) -> tuple[Path, ChatFormat]:
    """`resolve_model`, and the chat format of the model."""
    folder = model_path(name)
    check_model_folder(folder, f"model {name}", weights=weights)
    tokenizer = read_tokenizer(folder, f"model {name}")
    return folder, ChatFormat(tokenizer, earlier_reasoning=earlier_reasoning)


def check_first_prompts(config: RunConfig, first: Sequence[Task], lengths: Sequence[int]) -> None:
    """Raise UserError if a task's first prompt, of so many tokens, fills the context."""
    model = json.loads((Path(config.model) / "config.json").read_bytes())
    most = model.get("max_position_embeddings") or config.actor.max_model_len
    for task, length in zip(first, lengths, strict=True):
        if length >= config.actor.max_model_len:
            raise UserError(
                f"actor.max_model_len={config.actor.max_model_len}: the first prompt of task "
                f"{task.task_id} has {length} tokens, which leaves no room for a response; raise it"
            )
        if length >= most:
            raise UserError(
                f"model {config.model}: its context of {most} tokens is shorter than the first "
                f"prompt of task {task.task_id} with {length}; choose a model with a longer one"
            )


def check_run_folder(run: Path, resume: bool, *, may_go_on: bool = True) -> None:
    """Raise UserError rather than mix two runs in one folder. `may_go_on`: another launcher may
    hold it."""
    config = run / "config.yaml"
    if config.exists() and not resume:
        raise UserError(f"run {run}: exists; add --resume to continue it, or choose another name")
    if resume and not config.exists():
        raise UserError(
            f"run {run}: has no config.yaml, so there is nothing to resume; check the name"
        )
    if not may_go_on and (run / LOCK).is_file():
        with suppress(PermissionError):  # writing the folder says so
            _lock(run).close()


def _lock(run: Path) -> TextIO:
    lock = (run / LOCK).open("a", encoding="utf-8")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UserError(
            f"run {run}: another r3l-launch is using it; stop that one, or choose another name"
        ) from None
    return lock


def write_run_folder(plan: Plan) -> TextIO:
    """Make the folder and write the configuration that every process reads. Returns the folder's
    lock, which this process holds until the file is closed.

    Raises UserError if the folder cannot be written or another launcher holds it.
    """
    try:
        (plan.run / "logs").mkdir(parents=True, exist_ok=True)
        lock = _lock(plan.run)
        if plan.keys is not None and not plan.keys.exists():
            generate(plan.keys)
        write_config(plan.run, plan.config)
        versions.write(plan.run)
    except OSError as error:
        raise UserError(
            f"run {plan.run}: cannot be written ({error.strerror}); choose another with --run"
        ) from None
    return lock


def reached(endpoint: str, machine: str = "127.0.0.1") -> str:
    """Where processes reach what listens at `endpoint` on `machine`, by default on their own."""
    return endpoint.replace("//0.0.0.0:", f"//{machine}:")


def _check_binds(binds: dict[str, str]) -> None:
    """Raise UserError for an address that a service cannot use, and for two with the same port.

    Port 0 or * is any free one: the service takes it and says which.
    """
    ports: dict[int, str] = {}
    for option, bind in binds.items():
        check_bind(bind, option, encrypted=True)
        match = re.fullmatch(r"tcp://([\w.\-]+):(\d+|\*)", bind)
        if match is None:
            raise UserError(f"{option} {bind!r}: must look like tcp://127.0.0.1:5555")
        host, port = match[1], int(match[2].replace("*", "0"))
        if port in ports:
            raise UserError(
                f"{option} {bind}: has the same port as {ports[port]}; choose another port"
            )
        if port:
            ports[port] = option
        _check_free(option, bind, host, port)


def _check_free(option: str, bind: str, host: str, port: int) -> None:
    with socket.socket() as probe:
        # As ZeroMQ does: connections of a run that has just ended do not keep its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except (OSError, OverflowError) as error:
            raise UserError(
                f"{option} {bind}: cannot be used ({error}); choose a free port"
            ) from None
