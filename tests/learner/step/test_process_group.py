"""The process group of the ranks, in a process that joins it."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from learner.step.process_group import join_process_group
from tests.learner.ranks import on_two_ranks

PROGRAM = """
import atexit, torch
from learner.step.process_group import join_process_group, leave_process_group
leave_process_group()
atexit.register(lambda: print("left:", not torch.distributed.is_initialized()))  # runs last
join_process_group(60.0)
one = torch.ones(1)
torch.distributed.all_reduce(one)
join_process_group(60.0)
print("ranks:", torch.distributed.get_world_size(), "sum:", one.item())
"""


@pytest.mark.system
def test_a_process_without_a_launcher_is_a_group_of_one_and_leaves_it_when_it_ends() -> None:
    env = {name: value for name, value in os.environ.items() if "RANK" not in name}
    command = [sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith(("ranks", "left"))]
    assert said == ["ranks: 1 sum: 1.0", "left: True"]


def listen(folder: Path) -> None:
    """Writes where a rank of two listens."""
    join_process_group(60.0)
    one = torch.ones(1)
    torch.distributed.all_reduce(one)
    listening = [c.laddr.ip for c in psutil.Process().net_connections() if c.status == "LISTEN"]
    said = f"sum: {one.item()} listens at {sorted(set(listening))}"
    (folder / str(torch.distributed.get_rank())).write_text(said)


@pytest.mark.system
def test_ranks_of_one_machine_listen_only_to_it(tmp_path: Path) -> None:
    on_two_ranks(listen, tmp_path)
    for rank in "01":
        assert (tmp_path / rank).read_text() == "sum: 2.0 listens at ['127.0.0.1']"
