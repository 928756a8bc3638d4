"""The interface of a policy: it samples responses token by token."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from r3l.rollout.chat import ChatFormat

FinishReason = Literal["stop", "length", "overflow"]


@dataclass(frozen=True)
class SampleParams:
    """The settings for sampling one response. `stop`: texts that end the response and stay part of
    it. The lowest `priority` is served first."""

    max_tokens: int
    temperature: float = 1.0  # 0: greedy
    seed: int | None = None  # None: the engine's own random stream
    json_schema: dict[str, Any] | None = None
    structural_tag: str | None = None  # xgrammar's description of tool calls
    stop: tuple[str, ...] = ()
    priority: int = 0


@dataclass(frozen=True)
class Sample:
    """One sampled response. A response that ended by itself includes its stop token.

    `logprobs`: each token's log-probability (nats) in the distribution ∝ exp(logits / temperature),
    or ∝ exp(logits) for greedy sampling. `version`, `newest_version`: the oldest and the newest
    policy version that sampled its tokens. `finish_reason`: stop | length (budget reached) |
    overflow (context full; the response may be empty).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    version: int
    newest_version: int
    finish_reason: FinishReason


class Policy(Protocol):
    """Samples tokens, and knows its own chat format."""

    @property
    def chat(self) -> ChatFormat: ...

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Samples one response to `token_ids`. Raises EngineFailed."""


class ScoringPolicy(Policy, Protocol):
    """A policy that also computes how likely given tokens are."""

    async def score(self, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
        """Returns the log-probabilities (nats) of the tokens from position `start` ≥ 1 on, each
        after all tokens before it, in the distribution ∝ exp(logits). Raises EngineFailed."""


@dataclass(frozen=True)
class WatchedPolicy:
    """A policy that samples inside a context manager, which sees the errors of sampling."""

    policy: Policy
    context: Callable[[], AbstractContextManager[None]]

    @property
    def chat(self) -> ChatFormat:
        return self.policy.chat

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Samples as `policy` does. Raises its errors."""
        with self.context():
            return await self.policy.sample(token_ids, params)
