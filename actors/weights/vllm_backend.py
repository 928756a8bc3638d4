"""The vLLM weight-transfer engine `zmq`: loads a staged weight set into a running engine.

The actor process fetches a set over ZeroMQ (actors/weights/subscriber.py) and stages it in shared
memory (actors/weights/staging.py). Every engine worker on this host maps the staged set. So
generation pauses only for the load. A slow or dead publisher never stops generation.

The processes of an engine call `register` (`vllm_plugin` in r3l/files/own_packages.py).
"""

import functools
import hashlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.platforms import current_platform

from actors.weights.staging import staged_tensors
from r3l.run.process.end_with_parent import end_with_starter
from r3l.weights.manifest import Manifest
from r3l.weights.sums import MODULUS

BACKEND = "zmq"
WORKER_EXTENSION = "actors.weights.vllm_backend.WeightReport"
BLOCK_WORDS = 1 << 20  # how many 64-bit words are summed at a time
CPU_BLOCK_WORDS = 1 << 16  # these fit into a core's cache, which makes sums three times as fast


@dataclass
class StagedInit(WeightTransferInitInfo):
    """Carries nothing: each update names its own file."""


@dataclass
class StagedUpdate(WeightTransferUpdateInfo):
    """One update: the `path` of the file with the staged weights, and their manifest."""

    path: str
    manifest: dict[str, Any]


class StagedWeightTransferEngine(WeightTransferEngine[StagedInit, StagedUpdate]):
    """Loads staged weights layer by layer through the model's own loaders."""

    init_info_cls = StagedInit
    update_info_cls = StagedUpdate

    def init_transfer_engine(self, init_info: StagedInit) -> None:
        """Does nothing: the worker holds no connection."""

    def start_weight_update(self) -> None:
        """Puts the parameters of all layers back into the checkpoint's format, for loading."""
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        tied = bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))
        self.model.r3l_load = Load(self.model, tied=tied)
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: StagedUpdate) -> None:
        manifest = Manifest.from_wire(update_info.manifest)
        loaded = self.model.load_weights(staged_tensors(update_info.path, manifest.layout))
        self.model.r3l_load.received(manifest, loaded)

    def finish_weight_update(self) -> None:
        """Repacks every layer for its kernels."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        self.model.r3l_load.finish()
        # The reload skips a tied output head, which is not a checkpoint tensor. But on CPU the head
        # computes from a packed copy of its weights, and this copy would keep the old weights.
        for module in self.model.modules() if current_platform.is_cpu() else ():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        """Does nothing: the worker holds no resources."""


class Load:
    """Records which parameters got no weights, and each parameter's sums (r3l.weights.sums).

    Computes a layer's sums before the layer's weights are processed for a kernel, because
    processed weights may be packed in a form that cannot be read.
    """

    def __init__(self, model: torch.nn.Module, *, tied: bool) -> None:
        self.model = model
        self.names = {
            name
            for name, _ in model.named_parameters()
            if not (tied and name.startswith("lm_head"))
        }
        self.missing: set[str] = set()
        self.sums: dict[str, tuple[int, int]] | None = {}
        self._dtypes: set[str] = set()
        self._layers = {layer: name for name, layer in model.named_modules()}
        self._wrapped: list[Any] = []
        for layer in self._layers:
            method: Any = getattr(layer, "quant_method", None)
            if hasattr(method, "process_weights_after_loading") and method not in self._wrapped:
                self._wrapped.append(method)
                method.process_weights_after_loading = self._before(
                    method.process_weights_after_loading
                )

    def received(self, manifest: Manifest, loaded: set[str] | None) -> None:
        """Records a received set. `loaded`: the parameters that were loaded, or None if unknown."""
        self._dtypes = {entry.dtype for entry in manifest.layout.tensors}
        if loaded is not None:
            self.missing = self.names - loaded

    def finish(self) -> None:
        """Computes the sums of layers whose weights are not processed for a kernel."""
        for method in self._wrapped:
            del method.process_weights_after_loading
        for layer, name in self._layers.items():
            if not hasattr(getattr(layer, "quant_method", None), "process_weights_after_loading"):
                self._take(layer, name)

    def report(self) -> str:
        return json.dumps({"missing": sorted(self.missing), "sums": self.sums})

    def _before(self, process: Callable[[torch.nn.Module], None]) -> Callable[..., None]:
        def take_sums_and_process(layer: torch.nn.Module) -> None:
            self._take(layer, self._layers[layer])
            process(layer)

        return take_sums_and_process

    def _take(self, layer: torch.nn.Module, prefix: str) -> None:
        for name, parameter in layer.named_parameters(recurse=False):
            name = f"{prefix}.{name}" if prefix else name
            if name not in self.names or self.sums is None:
                continue
            exact = {str(parameter.dtype).removeprefix("torch.")}
            if parameter.dtype != torch.float32 and self._dtypes - exact:
                self.sums = None  # rounded, quantized
            else:
                self.sums[name] = element_sums(parameter)


class WeightReport:
    """Lets a vLLM worker report about its weights (a mixin).

    vLLM's own checksums copy every tensor to the host, which pauses generation for seconds.
    """

    model_runner: Any

    def r3l_weight_hash(self) -> str:
        """Hashes this worker's parameters, in the layout that its kernels use."""
        return hash_of(self.model_runner.get_model())

    def r3l_load_report(self) -> str:
        report: str = self.model_runner.get_model().r3l_load.report()
        return report


def element_sums(parameter: torch.Tensor) -> tuple[int, int]:
    """Computes a parameter's two sums (r3l.weights.sums), on the parameter's device."""
    first = second = 0
    words = CPU_BLOCK_WORDS if parameter.device.type == "cpu" else BLOCK_WORDS
    for block in parameter.detach().reshape(-1).split(words):
        bits = block.to(torch.float32).view(torch.int32).to(torch.int64) & 0xFFFF_FFFF
        first, second = first + int(bits.sum()), second + int((bits * bits).sum())
    return first % MODULUS, second % MODULUS


def hash_of(model: torch.nn.Module) -> str:
    """Hashes a model's parameters. Almost all work is done on the parameters' device.

    Each block of 64-bit words becomes one sum mod 2^64. Each word of a block is multiplied by its
    own odd factor, so that a change of a single word always changes the sum.
    """
    whole = hashlib.blake2b(digest_size=16)
    for name, parameter in model.named_parameters():
        data = parameter.detach().contiguous().view(-1).view(torch.uint8)
        split = len(data) // 8 * 8
        odd = _odd_numbers(BLOCK_WORDS, data.device)
        blocks = data[:split].view(torch.int64).split(BLOCK_WORDS)
        sums = [(block * odd[: len(block)]).sum() for block in blocks]
        whole.update(f"{name} {tuple(parameter.shape)} {parameter.dtype}\n".encode())
        whole.update(torch.stack(sums).cpu().numpy().tobytes() if split else b"")
        whole.update(data[split:].cpu().numpy().tobytes())
    return whole.hexdigest()


@functools.cache
def _odd_numbers(count: int, device: torch.device) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return (torch.randint(-(1 << 62), 1 << 62, (count,), generator=generator) | 1).to(device)


def _is_error(record: logging.LogRecord) -> bool:
    """Lets only errors through, because each reload warns about layers without tensors, such as a
    tied head."""
    return record.levelno >= logging.ERROR


def register() -> None:
    """Registers the backend in this process. It may be called more than once."""
    end_with_starter()
    # A level would not do: vLLM configures its loggers again in each process, which resets levels.
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").addFilter(_is_error)
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, StagedWeightTransferEngine)
