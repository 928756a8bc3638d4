"""The GPU benchmark, on a CPU with tiny shapes: every job leaves its lines, failures included."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.jobs import JOBS
from benchmarks.gpu.lines import Lines, versions
from benchmarks.gpu.measures import MEASURES, Bench, run_job


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_a_line_keeps_what_is_common_and_five_digits_of_a_float(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "lines", {"card": "a"})
    lines.write({"x": 1.23456789, "y": {"z": [0.123456789]}, "n": 1234567})
    assert lines_of(lines.path) == [{"card": "a", "x": 1.2346, "y": {"z": [0.12346]}, "n": 1234567}]


def test_a_version_that_is_not_the_pinned_one_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.gpu.lines.metadata.version", lambda name: "0.1+cu130")
    assert versions()["torch"].startswith("0.1+cu130 (pinned: ")
    assert versions()["transformers"] == "0.1+cu130"


def test_a_measure_that_fails_or_comes_too_late_is_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(bench: Bench) -> Any:
        yield {"first": 1}
        raise ValueError("out of\nluck")

    monkeypatch.setitem(MEASURES, "ways", broken)
    job, lines = JOBS["0.5b zero 2"], Lines(tmp_path / "lines")
    run_job(job, tmp_path, lines, 100.0, tiny=True)
    start, first, error = lines_of(lines.path)
    assert start["stage"] == 2 and first["first"] == 1
    assert error["error"] == "ValueError: out of luck"
    run_job(job, tmp_path, lines, -1.0, tiny=True)
    assert [line["error"] for line in lines_of(lines.path)[3:]] == ["no time was left"] * 2


@pytest.mark.nightly
@pytest.mark.system
def test_every_job_leaves_its_lines_on_a_cpu(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    command = [sys.executable, "-m", "benchmarks.gpu", "--tiny", "--lines", str(path)]
    subprocess.run(command, check=True, timeout=550)
    found = lines_of(path)
    assert not [line for line in found if isinstance(line.get("error"), str)]
    made = {(line["job"], line["measure"]) for line in found}
    wanted = {(job.name, name) for job in JOBS.values() for name in job.measures}
    assert wanted - made == {(name, "out_of_memory") for name in ("1.5b zero 1", "1.5b zero 2")}
    by_format = {line["format"]: line for line in found if line["measure"] == "agreement"}
    assert by_format["float32"]["loss"] < 1e-5
    assert all(line["grad_norm"] < 1e-3 for line in found if line["measure"] == "resume")


KERNELS = """
import torch
from transformers.models.qwen2.modeling_qwen2 import Qwen2RMSNorm, apply_rotary_pos_emb
from benchmarks.gpu import vllm_kernels as kernels

x, residual, weight, out = *torch.randn(2, 5, 64), torch.randn(64), torch.empty(5, 64)
norm = Qwen2RMSNorm(64, 1e-6)
norm.weight.data = weight
kernels.rms_norm(out, x, weight, 1e-6)
torch.testing.assert_close(out, norm(x))
summed = x + residual
kernels.fused_add_rms_norm(x, residual, weight, 1e-6)
torch.testing.assert_close((x, residual), (norm(summed), summed))

kernels.silu_and_mul(out[:, :32], x)
torch.testing.assert_close(out[:, :32], torch.nn.functional.silu(x[:, :32]) * x[:, 32:])

angles = torch.arange(9.0)[:, None] * torch.rand(8)
positions, (query, key) = torch.tensor([3, 0, 8, 1, 1]), torch.randn(2, 5, 4, 16)
full = torch.cat((angles, angles), -1)[positions]
wanted = apply_rotary_pos_emb(query, key, full.cos(), full.sin(), unsqueeze_dim=1)
cache = torch.cat((angles.cos(), angles.sin()), -1)
kernels.rotary_embedding(positions, query.view(5, 64), key.view(5, 64), 16, cache, True)
torch.testing.assert_close((query, key), wanted)
"""


@pytest.mark.nightly
def test_what_stands_in_for_kernels_computes_what_transformers_does() -> None:
    subprocess.run([sys.executable, "-c", KERNELS], check=True, timeout=120)  # its ops are global


@pytest.mark.nightly
@pytest.mark.system
def test_an_engine_leaves_its_lines_on_a_cpu(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    command = [sys.executable, "-m", "benchmarks.gpu.engine", "--tiny", "--lines", str(path)]
    subprocess.run([*command, "actor.max_model_len=512"], check=True, timeout=300)
    _, logprobs, *loads = lines_of(path)
    assert logprobs["engine_learner"]["largest"] < 1e-5
    assert [line["hash_of_start"] for line in loads] == [False, True, False, True]
    assert [line["responses_of_start"] for line in loads[1::2]] == [1.0, 1.0]
    assert loads[3]["patch_bytes"] < 0.1 * loads[3]["full_bytes"]
