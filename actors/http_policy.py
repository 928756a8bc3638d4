"""Samples from a running vLLM server: token ids in and out, over HTTP.

The server's /v1/completions takes and returns token ids, so nothing is tokenised again; the
tokenizer is read from the model's folder for the chat format. The weights stay at version 0.
The server's --logprobs-mode determines the kind of the log-probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from r3l.errors import EngineDead, EngineFailed, EngineSick, RequestRefused, UserError
from r3l.model_folder import read_tokenizer
from r3l.rollout import engine_symptoms
from r3l.rollout.chat import ChatFormat, EarlierReasoning
from r3l.rollout.policy_interface import FinishReason, Sample, SampleParams

CONNECT_S = 10.0
REPLY_S = 1800.0
"""Long, because a busy server may be slow. A dead server refuses the connection."""


class ServedPolicy:
    """Implements `r3l.rollout.policy_interface.Policy` with a server's model."""

    def __init__(
        self, client: httpx.AsyncClient, model: str, chat: ChatFormat, context_length: int
    ) -> None:
        self.client, self.model, self.chat = client, model, chat
        self.context_length = context_length

    @classmethod
    async def connect(
        cls, url: str, folder: Path, earlier_reasoning: EarlierReasoning = "refuse"
    ) -> ServedPolicy:
        """Connect to a server. Raises UserError if no server replies at `url`, or if its model has
        a different name than `folder`."""
        tokenizer = read_tokenizer(folder, f"--model {folder}")
        chat = ChatFormat(tokenizer, earlier_reasoning=earlier_reasoning)
        try:
            base = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        except httpx.InvalidURL as error:
            raise UserError(
                f"--engine {url}: not a valid URL ({error}); write http://host:port"
            ) from None
        if base.scheme not in ("http", "https") or not (base.port or 80) < 1 << 16:
            raise UserError(f"--engine {url}: must look like http://host:port, port up to 65535")
        client = httpx.AsyncClient(
            base_url=base,
            timeout=httpx.Timeout(REPLY_S, connect=CONNECT_S),
            limits=httpx.Limits(max_connections=None),
        )
        try:
            reply = await client.get("/v1/models", timeout=CONNECT_S)
            reply.raise_for_status()
            served = reply.json()["data"][0]
            name, length = str(served["id"]), int(served["max_model_len"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            await client.aclose()
            raise UserError(
                f"--engine {url}: no vLLM server replies there ({type(error).__name__}: {error}); "
                "start one with: python -m vllm.entrypoints.openai.api_server --model MODEL_FOLDER"
            ) from None
        root = str(served.get("root") or name)
        if Path(root).name != folder.name:
            await client.aclose()
            raise UserError(
                f"--engine {url}: serves {root}, not --model {folder}; "
                "set --model to the served model"
            )
        return cls(client, name, chat, length)

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Sample one response. Raises EngineFailed if the server refuses the request, EngineDead if
        it does not reply, EngineSick for impossible log-probabilities."""
        room = self.context_length - len(token_ids)
        if room <= 0:
            return Sample((), (), 0, 0, "overflow")
        try:
            reply = await self.client.post(
                "/v1/completions", json=self._body(token_ids, params, room)
            )
        except httpx.HTTPError as error:
            raise EngineDead(
                f"the engine at {self.client.base_url} does not reply: {error!r}; on CPUs a server "
                "needs --no-enable-chunked-prefill"
            ) from error
        if reply.status_code != 200:
            kind = RequestRefused if reply.status_code == 400 else EngineFailed
            raise kind(
                f"the engine refused {len(token_ids)} tokens: {reply.status_code} "
                f"{reply.text[:300]}",
                cause="engine_request",
            )
        try:
            choice = reply.json()["choices"][0]
            tokens = tuple(int(token) for token in choice["token_ids"])
            logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
            cut = choice["finish_reason"] == "length"
        except (ValueError, LookupError, TypeError) as error:
            raise EngineFailed(
                f"the engine's reply has no token ids ({error!r}); use a vLLM that supports "
                "return_token_ids",
                cause="engine_reply",
            ) from error
        if symptom := engine_symptoms.of_logprobs(logprobs):
            raise EngineSick(f"{self.client.base_url}: {symptom.message}", cause=symptom.cause)
        reason: FinishReason = "stop"
        if cut:
            reason = "overflow" if room < params.max_tokens else "length"
        return Sample(tokens, logprobs, 0, 0, reason)

    def _body(self, token_ids: Sequence[int], params: SampleParams, room: int) -> dict[str, Any]:
        """Make a request that sets every sampling parameter: a server's defaults may differ."""
        body = {
            "model": self.model,
            "prompt": list(token_ids),
            "max_tokens": min(params.max_tokens, room),
            "temperature": params.temperature,
            "seed": params.seed,
            "top_p": 1.0,
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 0,
            "return_token_ids": True,
            "skip_special_tokens": False,
            "stop": list(params.stop),
            "include_stop_str_in_output": True,
            "stop_token_ids": [self.chat.end_id],
        }
        if params.json_schema is not None:
            body["structured_outputs"] = {"json": params.json_schema}
        elif params.structural_tag is not None:
            body["structured_outputs"] = {"structural_tag": params.structural_tag}
        return body

    async def aclose(self) -> None:
        """Close the connections."""
        await self.client.aclose()
