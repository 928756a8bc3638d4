"""Builds vLLM's engine arguments from the actor's settings, and checks the user's arguments.

    the actor's own arguments (from ActorConfig)  +  the user's other arguments (actor.engine)

Checking the user's arguments does not import vllm, so that a launcher can do it.
"""

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from r3l.errors import UserError, did_you_mean
from r3l.run.settings.actor import ActorConfig

OWNED_ARGUMENTS = {
    "model": "model",
    "trust_remote_code": None,
    "max_model_len": "actor.max_model_len",
    "dtype": "actor.dtype",
    "seed": "seed",
    "weight_transfer_config": None,
    "worker_extension_cls": None,
    "enable_prefix_caching": None,
    "logprobs_mode": None,
    "scheduling_policy": None,
}
"""The engine arguments that the actor sets. Each value is the setting to use instead, if any."""


def check_engine_arguments(config: ActorConfig) -> None:
    """Raises UserError if `actor.engine` has an argument that the actor sets or that vLLM lacks."""
    for name in config.engine:
        if name in OWNED_ARGUMENTS:
            instead = OWNED_ARGUMENTS[name]
            hint = f"set {instead} instead" if instead else "leave it out"
            raise UserError(f"actor.engine.{name}: the actor sets this itself; {hint}")
        known = known_arguments()
        if known and name not in known:
            hint = did_you_mean(name.replace("-", "_").lower(), known)
            raise UserError(
                f"actor.engine.{name}: not an engine argument of vLLM{hint}; "
                "see vLLM's engine arguments"
            )


@cache
def known_arguments() -> frozenset[str]:
    """Lists vLLM's engine arguments without importing vLLM, which would take ten seconds. Returns
    an empty set if vLLM's source is missing."""
    vllm = find_spec("vllm")
    source = Path(vllm.origin).parent / "engine" / "arg_utils.py" if vllm and vllm.origin else None
    if source is None or not source.is_file():
        return frozenset()
    return frozenset(
        field.target.id
        for part in ast.parse(source.read_bytes()).body
        if isinstance(part, ast.ClassDef) and part.name in ("EngineArgs", "AsyncEngineArgs")
        for field in part.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    )


def engine_arguments(
    model: Path, config: ActorConfig, context_length: int, seed: int
) -> dict[str, Any]:
    """Returns vLLM's engine arguments: the actor's own, then the user's. Raises UserError as
    `check_engine_arguments` does."""
    import torch
    from vllm.config import StructuredOutputsConfig, WeightTransferConfig

    from actors.weights.vllm_backend import BACKEND, WORKER_EXTENSION

    check_engine_arguments(config)
    gpu = torch.cuda.is_available()
    return {
        "model": str(model),
        "trust_remote_code": False,
        "dtype": config.dtype if config.dtype != "auto" else "bfloat16" if gpu else "float32",
        "max_model_len": context_length,
        "enable_prefix_caching": True,
        # Log-probabilities after temperature, as tokens are drawn; vLLM's default ignores it.
        "logprobs_mode": "processed_logprobs",
        "generation_config": "vllm",
        "scheduling_policy": "priority",  # the oldest groups first
        "seed": seed,
        # Weak models would fill their budget with white space, if the grammar allowed it.
        "structured_outputs_config": StructuredOutputsConfig(
            backend="xgrammar", disable_any_whitespace=True
        ),
        "weight_transfer_config": WeightTransferConfig(backend=BACKEND),
        "worker_extension_cls": WORKER_EXTENSION,
        **({} if gpu else _cpu_arguments(context_length)),
        **config.engine,
    }


def _cpu_arguments(context_length: int) -> dict[str, Any]:
    """Returns the arguments for a CPU engine.

    Prefills are not split: vLLM 0.32 would rewind the random stream of a seeded request, which CPU
    generators cannot do. Small cache blocks let short prompts share prefixes. The cache is one GiB.
    By default, vLLM would take most of the machine's memory for it.
    """
    return {
        "enforce_eager": True,
        "distributed_executor_backend": "uni",
        "enable_chunked_prefill": False,
        "max_num_batched_tokens": max(8192, context_length),
        "block_size": 32,
        "kv_cache_memory_bytes": 1 << 30,
    }
