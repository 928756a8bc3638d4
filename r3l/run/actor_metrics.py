"""An actor's metrics, and their way to TensorBoard:

    engine, subscriber, actor: count ─► heartbeat ─► buffer: named numbers ─► learner: combine

A field defines its metric: the TensorBoard tag, the unit, the meaning, and how the learner combines
the actors' values. To add a metric, add a field here and a line that counts it.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Self


@dataclass(frozen=True)
class MetricInfo:
    """Says how a metric is shown and combined. `over`: "all" means every actor that ever reported,
    "present" only actors with a recent heartbeat.

    A tag that ends in `<…>` belongs to a Counter, which has one tag for each of its keys.
    """

    tag: str
    unit: str
    meaning: str
    combine: Literal["sum", "mean"]
    over: Literal["all", "present"]


def _total(tag: str, unit: str, meaning: str) -> Any:
    """Makes a field for a total since the start of the actor's process. Totals are summed over all
    actors that ever reported."""
    info = {"info": MetricInfo(tag, unit, meaning, "sum", "all")}
    if tag.endswith(">"):
        return field(default_factory=Counter, metadata=info)
    return field(default=0, metadata=info)


def _gauge(tag: str, unit: str, meaning: str, combine: Literal["sum", "mean"] = "mean") -> Any:
    """Makes a field for a current value, combined over the actors with a recent heartbeat."""
    return field(default=0, metadata={"info": MetricInfo(tag, unit, meaning, combine, "present")})


@dataclass
class ActorMetrics:
    """The metrics of one actor's process, over all the engines it started."""

    requests_running: int = _gauge(
        "actor/requests_running", "requests", "running in the engines", combine="sum"
    )
    weight_version: int = _gauge(
        "actor/weight_version", "version", "of the weights in the engines, mean over actors"
    )
    idle_share: float = _gauge(
        "actor/idle_share", "share", "of the engine's capacity, unused because no lease was granted"
    )
    kv_cache_usage: float = _gauge(
        "actor/kv_cache_usage", "share", "of the engine's KV cache, held by requests"
    )
    preemptions: int = _total(
        "actor/preemptions", "requests", "that lost their place in a full KV cache for a while"
    )
    generated_tokens: int = _total("actor/generated_tokens", "tokens", "sampled")
    responses_across_versions: int = _total(
        "actor/responses_across_versions", "responses", "that new weights met before their end"
    )
    prompt_tokens: int = _total("actor/prompt_tokens", "tokens", "given as prompts")
    cached_tokens: int = _total("actor/cached_tokens", "tokens", "of prompts in the prefix cache")
    gpus: int = _gauge("actor/gpus", "GPUs", "of the engines", combine="sum")
    cpu_s: float = _total("actor/cpu_s", "s", "CPU time, engines and environments included")
    gpu_s: float = _total("actor/gpu_s", "s", "GPUs of the engines, each while its actor ran")
    special_texts: int = _total(
        "actor/special_texts",
        "texts",
        "given to the policy that hold the text of a special token, which stays text",
    )
    session_wait_s: float = _total(
        "actor/session_wait_s", "s", "attempts waited for a session of the environment's processes"
    )
    paused_s: float = _total("actor/paused_s", "s", "engines paused to load weights")
    groups: int = _total("actor/groups", "groups", "explored to the end")
    results: Counter[str] = _total("actor/results_<role>_<status>", "slots", "resolved")
    taken_over: int = _total("actor/taken_over", "groups", "begun by another actor")
    partial: Counter[str] = _total(
        "actor/partial_<count>",
        "1",
        "of attempts that another actor or a killed agent left: continued, their tokens, "
        "dropped (the environment did not replay them); refused: progress that was not put; "
        "resent: progress sent whole, since the buffer lacked what it adds to",
    )
    lease_lost: int = _total("actor/lease_lost", "groups", "left because the lease had expired")
    put_conflicts: int = _total(
        "actor/put_conflicts", "groups", "left because a slot had another result"
    )
    refused: Counter[str] = _total("actor/refused_<cause>", "results", "refused by the buffer")
    buffer_unavailable: int = _total(
        "actor/buffer_unavailable", "requests", "the buffer did not reply to in time"
    )
    store_full: int = _total("actor/store_full", "requests", "the buffer had no room for")
    engine_failures: int = _total("actor/engine_failures", "engines", "died or did not start")
    engines_sick: Counter[str] = _total(
        "actor/engines_sick_<cause>", "engines", "replaced: their results cannot be right"
    )
    agents_running: int = _gauge("agent/running", "agents", "running now", combine="sum")
    render_s: float = _total(
        "agent/render_s", "s", "spent on reading agents' messages and on making tokens of them"
    )
    agent: Counter[str] = _total(
        "agent/<count>",
        "1",
        "of agents: attempts, calls, conversations (those that are trained), rebased "
        "(conversations rendered whole again), with_tools (calls that offer tools), tools_called "
        "(replies that call a tool), tool_parse_failed (replies whose tool call or reasoning "
        "stayed text), taped (calls answered from a tape), diverged (retries), restarts (retries "
        "from the start), killed (agents that were started once more), restored (worlds put "
        "back at a retry's step), snapshot_failed, restore_failed, unknown_fields (of requests, "
        "named in the log and not followed), grammar_refused (requests whose schema the engine "
        "cannot follow), refused (requests that got an error), connections_closed (broken, silent, "
        "or too many), second_models (attempts that ask for a second model of which "
        "actor.agent.models says nothing), shapes_asked (calls whose reply may be trained that ask "
        "for a shape or force a tool call), shapes_missed (those that needed a grammar)",
    )
    tokens: Counter[str] = _total(
        "agent/tokens_<what>",
        "tokens",
        "of recorded attempts, evaluations too: sampled; trained; untrained_<why>: grammar (it "
        "shaped the reply), missed (a free reply that did not fit its request), asked "
        "(policy-untrained), unseen (the agent did not receive the reply), side (not in the main "
        "conversation)",
    )
    asked: Counter[str] = _total(
        "agent/asked_<model>", "calls", "to the policy, by the name of the model in the request"
    )
    weights_full_bytes: int = _total("weights/received_full_bytes", "bytes", "of whole chunks")
    weights_patch_bytes: int = _total("weights/received_patch_bytes", "bytes", "of patches")
    weights_updates: int = _total("weights/updates", "versions", "loaded by engines")
    weights_fetch_s: float = _gauge("weights/fetch_s", "s", "fetch of the latest version")
    weights_pause_s: float = _gauge("weights/pause_s", "s", "engine's pause for the latest version")
    weights_failed: Counter[str] = _total("weights/failed_<cause>", "updates", "failed")

    def numbers(self) -> dict[str, float]:
        """Returns the metrics as named numbers; a Counter gives a number for each of its keys."""
        numbers: dict[str, float] = {}
        for metric in fields(self):
            value = getattr(self, metric.name)
            if isinstance(value, Counter):
                numbers |= {f"{metric.name}_{key}": float(n) for key, n in value.items()}
            else:
                numbers[metric.name] = float(value)
        return numbers

    @classmethod
    def read(cls, numbers: Mapping[str, float]) -> Self:
        """Reads the record from `numbers`; ignores names that do not belong to a field."""
        record = cls()
        for metric in fields(cls):
            if isinstance(counter := getattr(record, metric.name), Counter):
                start = f"{metric.name}_"
                counts = {
                    n.removeprefix(start): v for n, v in numbers.items() if n.startswith(start)
                }
                counter.update(counts)
            elif metric.name in numbers:
                setattr(record, metric.name, numbers[metric.name])
        return record


def described_fields() -> list[tuple[str, MetricInfo]]:
    return [(metric.name, metric.metadata["info"]) for metric in fields(ActorMetrics)]


def combined(everyone: Iterable[ActorMetrics], present: Iterable[ActorMetrics]) -> dict[str, float]:
    """Combines the actors' metrics into one value for each tag. `present`: the actors with a recent
    heartbeat."""
    actors = {"all": list(everyone), "present": list(present)}
    metrics: dict[str, float] = {}
    for name, shown in described_fields():
        values = [getattr(record, name) for record in actors[shown.over]]
        if "<" in shown.tag:
            start = shown.tag.partition("<")[0]
            metrics |= {start + key: float(n) for key, n in sum(values, Counter()).items()}
        elif values:
            total = float(sum(values))
            metrics[shown.tag] = total / len(values) if shown.combine == "mean" else total
    return metrics
