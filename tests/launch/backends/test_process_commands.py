"""The commands and environments of a run's processes."""

import base64
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from launch.backends.process_commands import ProcessCommands, free_port
from launch.backends.processes import Children, Command
from launch.checks.plan_options import PlanOptions
from launch.preparation import prepare, write_run_folder
from launch.topology.placement import Plan
from r3l.run.config import load
from r3l.run.process.steady_threads import STEADY_THREADS
from tests.launch.fakes import topology


@pytest.fixture
def small(tmp_path: Path) -> Plan:
    """Two actors and one rank on a machine without GPUs."""
    return Plan(
        config=load(),
        run=tmp_path,
        topology=topology(2),
        buffer_bind="tcp://0.0.0.0:5001",
        weights_bind="tcp://0.0.0.0:5002",
        resume=False,
    )


def option(command: Command, name: str) -> str:
    return command.words[command.words.index(name) + 1]


def test_services_listen_where_the_plan_says_and_processes_here_reach_them_by_loopback(
    small: Plan,
) -> None:
    commands = ProcessCommands(small)
    assert option(commands.buffer(), "--bind") == "tcp://0.0.0.0:5001"
    assert option(commands.learner(), "--weights") == "tcp://0.0.0.0:5002"
    assert option(commands.learner(), "--buffer") == "tcp://127.0.0.1:5001"
    assert option(commands.actor(1), "--buffer") == "tcp://127.0.0.1:5001"
    assert option(commands.actor(1), "--weights") == "tcp://127.0.0.1:5002"
    assert option(commands.actor(1), "--name") == "actor-1"


def test_each_process_gets_the_key_file_of_its_role_and_none_without_keys(small: Plan) -> None:
    assert "--keys" not in ProcessCommands(small).buffer().words
    commands = ProcessCommands(replace(small, keys=Path("/keys")))
    assert option(commands.buffer(), "--keys") == "/keys/service.json"
    assert option(commands.actor(0), "--keys") == "/keys/client.json"
    assert option(commands.learner(), "--keys") == "/keys"


def test_waiting_threads_of_a_cpu_run_sleep_since_its_processes_share_the_cores(
    small: Plan,
) -> None:
    commands = ProcessCommands(replace(small, topology=topology(2, cores=16)))
    asleep = STEADY_THREADS | {"OMP_WAIT_POLICY": "PASSIVE"}
    assert commands.actor(0).env == asleep | {"OMP_NUM_THREADS": "5"}
    all_cores = asleep | {"OMP_NUM_THREADS": "16"}
    assert commands.learner().env == all_cores | {"CUDA_VISIBLE_DEVICES": ""}


def test_each_actor_sees_one_gpu_that_the_learner_leaves(small: Plan) -> None:
    commands = ProcessCommands(replace(small, topology=topology(2, "2gpu", gpus=4)))
    assert [commands.actor(i).env for i in range(2)] == [
        STEADY_THREADS | {"CUDA_VISIBLE_DEVICES": "2"},
        STEADY_THREADS | {"CUDA_VISIBLE_DEVICES": "3"},
    ]
    assert commands.learner().env == STEADY_THREADS | {"PYTHONSAFEPATH": "1"}
    assert places(commands.learner()) == ["0", "1"]
    assert not [word for word in commands.actor(0).words if word.startswith("actor.engine")]


def test_an_actor_of_several_gpus_sees_them_all(small: Plan) -> None:
    wide = replace(small, topology=topology(2, "4gpu", gpus=8, actor_gpus=2))
    commands = ProcessCommands(wide)
    assert commands.actor(1).env == STEADY_THREADS | {"CUDA_VISIBLE_DEVICES": "6,7"}


def test_actors_that_share_a_gpu_are_told_their_share_of_its_memory(small: Plan) -> None:
    commands = ProcessCommands(replace(small, topology=topology(4, "6gpu", gpus=8)))
    assert commands.actor(3).env == STEADY_THREADS | {"CUDA_VISIBLE_DEVICES": "7"}
    assert commands.actor(3).words[-1] == "actor.engine.gpu_memory_utilization=0.47"


def places(command: Command) -> list[int | str]:
    """The GPU, or the number, of each rank that DeepSpeed's launcher starts."""
    world = json.loads(base64.urlsafe_b64decode(option(command, "--world_info")))
    found: list[int | str] = world["localhost"]
    return found


def test_several_ranks_are_started_by_deepspeeds_launcher(small: Plan) -> None:
    command = ProcessCommands(replace(small, topology=topology(2, "2cpu"))).learner()
    assert places(command) == [0, 1] and option(command, "--module") == "learner.cli"
    assert "deepspeed.launcher.launch" not in ProcessCommands(small).learner().words


def test_keys_are_made_for_an_address_that_other_machines_reach(tmp_path: Path) -> None:
    options = PlanOptions(tmp_path / "run", 1, buffer_bind="tcp://0.0.0.0:*")
    plan = prepare(load(), options)
    assert plan.keys == tmp_path / "run" / "keys" and not plan.keys.exists()
    write_run_folder(plan).close()
    again = prepare(load(), replace(options, resume=True))
    assert again.keys == plan.keys
    assert option(ProcessCommands(plan).buffer(), "--keys") == str(plan.keys / "service.json")
    assert option(ProcessCommands(plan).actor(0), "--keys") == str(plan.keys / "client.json")
    assert prepare(load(), PlanOptions(tmp_path / "b", 1)).keys is None


def test_modules_of_the_users_folder_with_names_of_ours_break_no_process(
    small: Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "users"
    (folder / "envs").mkdir(parents=True)
    (folder / "envs" / "__init__.py").write_text("raise SystemExit('not the one')")
    (folder / "buffer.py").write_text("raise SystemExit('not the one')")
    monkeypatch.chdir(folder)
    commands, children = ProcessCommands(small), Children(tmp_path)
    for name, command in {"buffer": commands.buffer(), "actor": commands.actor(0)}.items():
        child = children.start(
            name, Command([*command.words[: command.words.index("-m") + 2], "--help"])
        )
        assert child.process.wait(120) == 0, child.last_lines(20)
    assert "-P" in commands.learner().words
    ranks = ProcessCommands(replace(small, topology=topology(2, "2cpu")))
    assert "-P" in ranks.learner().words and ranks.learner().env["PYTHONSAFEPATH"] == "1"


def test_two_processes_with_the_same_seed_choose_other_ports() -> None:
    chosen = []
    for _ in range(2):
        random.seed(1)
        chosen.append([free_port() for _ in range(3)])
    assert chosen[0] != chosen[1]
