"""An engine whose weights are spread over two workers takes new ones as a single one does."""

import os
import signal
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from actors.weights.vllm_backend import CPU_BLOCK_WORDS, element_sums, register
from r3l.models.model_path import builtin_policy
from r3l.weights.sums import sums_of
from tests.actors.fakes import PROMPT, Served, Tensors, stepped
from tests.processes import command_line

pytestmark = pytest.mark.system


def expected(weights: Tensors) -> torch.Tensor:
    """Log-probabilities after the prompt, by transformers."""
    model = AutoModelForCausalLM.from_pretrained(builtin_policy(), dtype=torch.float32)
    model.load_state_dict({name: tensor.float() for name, tensor in weights}, strict=False)
    with torch.no_grad():
        logits = model(torch.tensor([PROMPT])).logits[0, -1]
    return torch.log_softmax(logits, dim=-1)


def differences(served: Served, weights: Tensors) -> float:
    """The largest one between the engine's log-probabilities and those expected."""
    right = expected(weights)
    return max(abs(p - float(right[token])) for token, p in served.logits().items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_sums_over_several_blocks_are_those_of_the_published_bytes(dtype: torch.dtype) -> None:
    parameter = torch.randn(3, CPU_BLOCK_WORDS - 1).to(dtype)
    data = parameter.view(torch.uint8).numpy().reshape(-1)
    assert element_sums(parameter) == sums_of(data, str(dtype).removeprefix("torch."))


def test_two_workers_hold_their_shares_of_every_update_and_end_with_their_engine(
    tmp_path: Path,
) -> None:
    saved = sorted(load_file(builtin_policy() / "model.safetensors").items())
    other = [(name, torch.randn_like(tensor) * 0.1) for name, tensor in saved]
    served = Served(builtin_policy(), tensor_parallel_size=2, distributed_executor_backend="mp")
    try:
        workers = psutil.Process().children(recursive=True)
        prints = {served.fingerprint()}
        for weights in (other, saved, stepped(saved)):
            before = differences(served, weights)
            served.update(weights)
            assert differences(served, weights) < 1e-3 < before
            prints.add(served.fingerprint())
        assert served.subscriber.metrics.weights_patch_bytes > 0
        assert len(prints) == 3  # the saved weights came twice
        (engine,) = (p for p in workers if "EngineCore" in " ".join(command_line(p)))
        shares = [p for p in workers if "Worker_TP" in " ".join(command_line(p))]
        os.kill(engine.pid, signal.SIGKILL)
        ended, _ = psutil.wait_procs(shares, timeout=120)
        assert len(ended) == len(shares) == 2
    finally:
        served.close()


def test_the_reload_does_not_warn_at_every_update_though_vllm_configures_its_loggers_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    from vllm.logger import _configure_vllm_root_logger
    from vllm.model_executor.model_loader.reload import layerwise

    register()
    _configure_vllm_root_logger()
    layerwise.logger.addHandler(caplog.handler)
    layerwise.logger.warning("RotaryEmbedding: Failed to load weights")
    layerwise.logger.error("another")
    layerwise.logger.removeHandler(caplog.handler)
    assert {record.getMessage() for record in caplog.records} == {"another"}
