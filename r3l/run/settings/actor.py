"""Settings of the actors (actors.actor, actors.engine)."""

import re
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from r3l.rollout.exploration import Decoding
from r3l.settings.section import Section, without_words

_LOOPBACK = re.compile(r"localhost|127(?:\.\d+){1,3}|\[?::1\]?")


POLICY_NAMES = ("policy", "policy-untrained")
"""What a model's name may stand for, besides a server: the policy, trained or not."""


class ModelServer(Section):
    """What answers an agent's requests for a model by name."""

    url: str = Field(
        description="its base URL, such as https://host/v1; or policy, or policy-untrained: the "
        "policy answers and its replies are trained, or not"
    )
    key: str = Field("", description="the environment variable that holds its API key")

    @property
    def is_policy(self) -> bool:
        return self.url in POLICY_NAMES

    @model_validator(mode="before")
    @classmethod
    def _of_url(cls, value: Any) -> Any:
        return {"url": value} if isinstance(value, str) else value

    @field_validator("url")
    @classmethod
    def _is_url(cls, value: str) -> str:
        if value not in POLICY_NAMES and not value.startswith(("http://", "https://")):
            raise ValueError(
                f"{value} is not a URL; begin it with https:// or http://, or write policy or "
                "policy-untrained"
            )
        return value


def _covers(pattern: str, other: str) -> bool:
    """Whether a pattern matches every name that `other`, a later pattern, matches. False for a name
    without wildcards, which is looked up first. False if one of the two has brackets."""
    if "[" in pattern + other or not {"*", "?"} & {*other}:
        return False
    longest = "\0" * (len(pattern) + 1)  # a character that only a wildcard matches
    names = (other.replace("?", "\0").replace("*", any_) for any_ in ("", longest))
    return all(fnmatchcase(name, pattern) for name in names)


class AgentConfig(Section):
    """Attempts of agents. Agents call the policy over HTTP (env.name=agent or verifiers:NAME)."""

    timeout_s: float = Field(600.0, gt=0, description="time limit of an attempt, seconds")
    at_timeout: Literal["fail", "grade"] = Field(
        "fail", description="whether an attempt that takes too long fails, or is graded as it is"
    )
    tool_parser: str = Field(
        "auto",
        description="vLLM's parser of tool calls, or none; auto: the first that reads what the "
        "chat template writes",
    )
    reasoning_parser: str = Field("auto", description="vLLM's parser of reasoning, none or auto")
    train: Literal["main", "all"] = Field(
        "all",
        description="which conversations of an attempt are trained; all: every one, since the "
        "reward judges the attempt; main: those with the system prompt and the tools of its first "
        "trained call",
    )
    shapes: Literal["free_first", "grammar"] = Field(
        "free_first",
        description="replies to requests for a shape or a forced tool call; free_first: sampled "
        "freely, and once more under a grammar if the reply does not fit; grammar: under a "
        "grammar, which is never trained",
    )
    ignore: tuple[str, ...] = Field(
        (), description="regular expressions of text that may differ when an attempt is replayed"
    )
    max_divergences: int = Field(
        3,
        ge=0,
        description="after this many diverged replays in a row, retries start at the agent's first "
        "call; 0: all retries do",
    )
    state_s: float = Field(
        60.0, gt=0, description="time limit of saving or restoring an agent's state, seconds"
    )
    models: dict[str, ModelServer] = Field(
        default_factory=dict,
        description="what answers other names of models, by a name or else the first pattern that "
        "matches: a server, as in {'gpt-*': {url: …, key: …}}, whose answers are recorded, not "
        "trained; or policy or policy-untrained",
    )
    host: str = Field(
        "127.0.0.1",
        description="address on which agents reach the actor; 0.0.0.0 or :: (IPv6): by the "
        "machine's name",
    )
    port: int = Field(0, ge=0, lt=1 << 16, description="port on that address; 0: any free one")
    certificate: str = Field(
        "", description="PEM file with the certificate and key of that address, for https"
    )
    plain_http: bool = Field(
        False, description="whether keys and replies may leave the machine unencrypted"
    )

    @model_validator(mode="after")
    def _encrypted(self) -> Self:
        if not (_LOOPBACK.fullmatch(self.host) or self.certificate or self.plain_http):
            raise ValueError(
                f"host {self.host}: keys and replies would leave this machine unencrypted; set "
                "certificate, or plain_http=true on a network that only you can reach"
            )
        return self

    @field_validator("models")
    @classmethod
    def _each_can_match(cls, models: dict[str, ModelServer]) -> dict[str, ModelServer]:
        earlier: list[str] = []
        for pattern in models:
            if not pattern:
                raise ValueError("an empty name matches no model; leave it out")
            for other in earlier:
                if _covers(other, pattern):
                    raise ValueError(
                        f"{pattern} never matches, because {other} comes before it and matches the "
                        f"same names; move {pattern} before {other}"
                    )
            earlier.append(pattern)
        return models

    @field_validator("ignore")
    @classmethod
    def _compiles(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"{pattern!r}: not a regular expression ({error})") from None
        return patterns


class WeightsConfig(Section):
    """How published weights come to the engines."""

    transport: Literal["zmq", "relay", "ray"] = Field(
        "zmq",
        description="zmq: each engine fetches from the learner; relay: one process of a machine "
        "does, and all its engines load the set that it staged; ray: through Ray's object store, "
        "with --cluster ray. If relay or ray fails, the engine fetches from the learner",
    )
    bulk: Literal["encrypted", "keyed"] = Field(
        "encrypted",
        description="how weights travel between machines; keyed: readable by others, but with "
        "keyed checksums, for a network that only you can reach",
    )

    @model_validator(mode="after")
    def _ray_does_not_encrypt(self) -> Self:
        if self.transport == "ray" and self.bulk == "encrypted":
            raise ValueError(
                "transport=ray: Ray's object store does not encrypt what its nodes send each "
                "other; set bulk=keyed on a network that only you can reach, or transport=relay"
            )
        return self


class ActorConfig(Section):
    """Generation of attempts."""

    concurrent_requests: int = Field(
        64, ge=1, description="requests kept running in the engine; groups are leased to fit"
    )
    temperature: float = Field(
        1.0,
        ge=0.01,  # the least that vLLM samples at; all attempts of a greedy group would be the same
        le=2,  # the most that vLLM takes
        description="sampling temperature of attempts",
    )
    reflect_temperature: float = Field(0.7, ge=0, le=2, description="temperature of reflections")
    max_response_tokens: int | None = Field(
        None, ge=1, description="tokens per response; unset: what the environment declares"
    )
    max_reflection_tokens: int = Field(4096, ge=1, description="tokens per reflection")
    earlier_reasoning: Literal["refuse", "keep"] = Field(
        "refuse",
        description="if the chat template removes the reasoning of earlier replies: refuse the "
        "template, or keep the reasoning in the context",
    )
    max_model_len: int = Field(4096, ge=64, description="context length, tokens")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="engine number format; auto: float32 on CPU, bfloat16 on GPU"
    )
    engine: Annotated[dict[str, Any], AfterValidator(without_words)] = Field(
        default_factory=dict, description="further vLLM engine arguments, passed through"
    )
    agent: AgentConfig = Field(default_factory=lambda: AgentConfig())
    weights: WeightsConfig = Field(default_factory=lambda: WeightsConfig())
    progress_s: float = Field(
        2.0,
        ge=0,
        description="seconds of sampling between saves of an attempt; if the actor dies, another "
        "actor continues from the last save",
    )
    engine_timeout_s: float = Field(
        600.0, gt=0, description="seconds of silence after which an engine is considered dead"
    )
    engine_failures: int = Field(
        3, ge=1, description="engine failures in a row, without a result, that end the actor"
    )
    restarts: int = Field(
        3, ge=0, description="how often an actor that dies is started again within an hour"
    )

    def decoding(self, priority: int = 0) -> Decoding:
        """Returns how a group is sampled."""
        return Decoding(
            self.temperature,
            self.reflect_temperature,
            self.max_response_tokens,
            self.max_reflection_tokens,
            priority,
        )
