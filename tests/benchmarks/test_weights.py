"""The benchmark of weight updates: its optimizer step is AdamW's, and it prints every line."""

import subprocess
import sys

import pytest
import torch

from benchmarks.weights import publisher


def test_the_simulated_step_moves_weights_as_adamw_does() -> None:
    start = torch.randn(1000)
    torch.manual_seed(1)
    direction = publisher._adamw_direction(start)
    torch.manual_seed(1)
    parameter = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([parameter], lr=0.0, betas=(0.9, 0.95), weight_decay=0.0)
    for rate in (0.0, 0.0, 1e-2):
        optimizer.param_groups[0]["lr"] = rate
        parameter.grad = torch.randn_like(start)
        optimizer.step()
    assert torch.allclose(start - 1e-2 * direction, parameter, atol=1e-6)


@pytest.mark.nightly
@pytest.mark.system
def test_a_small_run_without_an_engine_prints_updates_and_the_crowd() -> None:
    small = ["--no-engine", "--hidden", "64", "--layers", "1", "--repeat", "1", "--encrypted"]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.weights", *small], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for line in ("whole", "lr 1e-6", "lr 1e-5", "lr 1e-4", "16 subscribers:"):
        assert f"\n{line}" in done.stdout
