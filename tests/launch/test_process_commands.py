"""The commands and environments of a run's processes."""

import os
from dataclasses import replace
from pathlib import Path

import pytest

from launch import hosts, process_commands
from launch.plan import Plan, make_plan
from launch.process_commands import ProcessCommands
from launch.processes import Children
from r3l.config import load


@pytest.fixture
def small(tmp_path: Path) -> Plan:
    """Two actors and one rank on a machine without GPUs."""
    return Plan(
        config=load(),
        run=tmp_path,
        actors=2,
        learner_ranks=1,
        learner_device="cpu",
        buffer_bind="tcp://0.0.0.0:5001",
        weights_bind="tcp://0.0.0.0:5002",
        resume=False,
    )


def option(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


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


def test_the_buffer_outlives_the_learner_of_the_run(small: Plan) -> None:
    lock = small.run / ".learner-lives"
    assert option(ProcessCommands(small).buffer(), "--outlive") == str(lock)


def test_the_limit_of_connections_is_the_buffers(small: Plan) -> None:
    assert option(ProcessCommands(small).buffer(), "--connections") == "1024"
    commands = ProcessCommands(replace(small, connections=2000))
    assert option(commands.buffer(), "--connections") == "2000"


def test_each_process_gets_the_key_file_of_its_role_and_none_without_keys(small: Plan) -> None:
    assert "--keys" not in ProcessCommands(small).buffer()
    commands = ProcessCommands(replace(small, keys=Path("/keys")))
    assert option(commands.buffer(), "--keys") == "/keys/service.json"
    assert option(commands.actor(0), "--keys") == "/keys/client.json"
    assert option(commands.learner(), "--keys") == "/keys"


def test_processes_of_a_cpu_run_share_the_cores_and_their_waiting_threads_sleep(
    small: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_commands.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(process_commands, "visible_gpus", list)
    commands = ProcessCommands(small)
    shared = {"OMP_NUM_THREADS": "5", "OMP_WAIT_POLICY": "PASSIVE"}
    assert commands.actor_env(0) == shared
    assert commands.learner_env() == shared | {"CUDA_VISIBLE_DEVICES": ""}


def test_each_actor_sees_one_gpu_that_the_learner_leaves(
    small: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_commands, "visible_gpus", lambda: ["0", "1", "2", "3"])
    commands = ProcessCommands(replace(small, learner_ranks=2, learner_device="gpu"))
    assert [commands.actor_env(i) for i in range(2)] == [
        {"CUDA_VISIBLE_DEVICES": "2"},
        {"CUDA_VISIBLE_DEVICES": "3"},
    ]
    assert commands.learner_env() == {
        "PYTHONSAFEPATH": "1",
        "R3L_LAUNCHER_PID": str(os.getpid()),
    }
    assert option(commands.learner(), "--include") == "localhost:0,1"


def test_several_ranks_are_started_by_deepspeeds_launcher(small: Plan) -> None:
    command = ProcessCommands(replace(small, learner_ranks=2)).learner()
    assert option(command, "--num_gpus") == "2" and option(command, "--module") == "learner.cli"
    assert "deepspeed.launcher.runner" not in ProcessCommands(small).learner()


def test_several_machines_are_started_through_deepspeeds_hostfile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosts.shutil, "which", lambda program: f"/usr/bin/{program}")
    monkeypatch.setattr(hosts, "_check_reachable", lambda path, host: None)
    file = tmp_path / "hosts"
    file.write_text("127.0.0.1 slots=8  # this one\n192.0.2.1 slots=8\n")
    plan = make_plan(
        load(None, []),
        tmp_path / "run",
        actors=1,
        learner="16gpu",
        buffer_bind="tcp://127.0.0.1:*",
        weights_bind="tcp://127.0.0.1:*",
        resume=False,
        hostfile=file,
    )
    command = ProcessCommands(plan).learner()
    at = command.index("--hostfile")
    assert command[at + 1 : at + 4] == [str(file), "--master_addr", "127.0.0.1"]
    assert "--num_gpus" not in command


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
        child = children.start(name, [*command[: command.index("-m") + 2], "--help"])
        assert child.process.wait(120) == 0, child.last_lines(20)
    assert "-P" in commands.learner()
    ranks = ProcessCommands(replace(small, learner_ranks=2))
    assert "-P" in ranks.learner() and ranks.learner_env()["PYTHONSAFEPATH"] == "1"
