"""Says which replies of agents are trained. Raises an alarm if most are not, or if no setting says
what a second model name means.

    actors' counts ─► agent/… of a step ─► the step's line, status, alarms of console and doctor
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from r3l.run.files.progress_lines import StepLine
from r3l.views.tape import UNTRAINED

LOOKED_AT = 5
"""How many of the last steps are examined. The counts of the step before these are subtracted."""
ENOUGH = 0.5  # of the sampled tokens, without those that the user has asked not to train
TOKENS, ASKED = "agent/tokens_", "agent/asked_"
NOT_COUNTED = "policy-untrained"
REMEDIES = {
    "grammar": "let the agent ask for a shape, or force a tool call, in fewer requests, or teach "
    "the policy the shape with r3l-learner warmup --data",
    "unseen": "let the agent wait longer for its replies, or ask for fewer that it does not use",
    "side": "set actor.agent.train=all",
}
REMEDIES["missed"] = REMEDIES["grammar"]


class Alarm(NamedTuple):
    """An alarm. `what`: what is wrong. `remedy`: what to do about it."""

    what: str
    remedy: str


def alarms(steps: Sequence[StepLine]) -> list[Alarm]:
    """Finds what is wrong with the training of a run's agents."""
    return [*_mostly_untrained(steps), *_second_models(steps)]


class AgentWatch:
    """Reports an alarm when it appears, and each time it comes back."""

    def __init__(self) -> None:
        self._steps: deque[StepLine] = deque(maxlen=LOOKED_AT + 1)
        self._reported: set[str] = set()

    def lines(self, step: StepLine) -> list[str]:
        """Returns the lines to show after a step."""
        self._steps.append(step)
        found = alarms(self._steps)
        new = [alarm for alarm in found if alarm.remedy not in self._reported]
        self._reported = {alarm.remedy for alarm in found}
        return [f"agents: {alarm.what}; {alarm.remedy}" for alarm in new]


def trained_words(metrics: Mapping[str, float], train: str) -> str:
    """Says what share of the agents' sampled tokens is trained, and why the others are not; "" if
    no attempt is recorded. `train`: actor.agent.train."""
    if not (sampled := metrics.get(f"{TOKENS}sampled", 0.0)):
        return ""
    trained = metrics.get(f"{TOKENS}trained", 0.0) / sampled
    causes = [f"{count / sampled:.0%} {UNTRAINED.get(why, why)}" for why, count in _why(metrics)]
    others = f"; not trained: {', '.join(causes)}" if causes else ""
    return f"trained: {trained:.0%} of the sampled tokens (actor.agent.train={train}){others}"


def asked_words(metrics: Mapping[str, float]) -> str:
    """Lists the model names under which agents called the policy, each with its number of calls; ""
    if there is none."""
    return ", ".join(f"{name} {calls:,.0f}" for name, calls in _asked(metrics))


def _asked(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    names = {tag.removeprefix(ASKED): n for tag, n in metrics.items() if tag.startswith(ASKED)}
    return sorted(names.items(), key=lambda item: (-item[1], item[0]))


def _why(metrics: Mapping[str, float]) -> list[tuple[str, float]]:
    """Returns (reason, tokens) of what is not trained, most tokens first."""
    start = f"{TOKENS}untrained_"
    causes = {tag.removeprefix(start): n for tag, n in metrics.items() if tag.startswith(start)}
    return sorted(causes.items(), key=lambda item: (-item[1], item[0]))


def _mostly_untrained(steps: Sequence[StepLine]) -> Iterator[Alarm]:
    if len(steps) <= LOOKED_AT:
        return
    before = steps[-LOOKED_AT - 1].metrics
    counts = {
        tag: count - before.get(tag, 0.0)
        for tag, count in steps[-1].metrics.items()
        if tag.startswith(TOKENS) and tag != f"{TOKENS}untrained_asked"
    }
    trained, untrained = counts.get(f"{TOKENS}trained", 0.0), _why(counts)
    sampled = trained + sum(tokens for _, tokens in untrained)
    if min(counts.values(), default=0.0) < 0 or trained >= ENOUGH * sampled:
        return  # less than before: the actors have started again
    why = untrained[0][0]
    yield Alarm(
        f"{trained / sampled:.0%} of their sampled tokens are trained; of most others "
        f"{UNTRAINED.get(why, why)}",
        REMEDIES.get(why, "r3l-agent check names the calls"),
    )


def _second_models(steps: Sequence[StepLine]) -> Iterator[Alarm]:
    if not steps or not steps[-1].metrics.get("agent/second_models"):
        return
    names = [(name, calls) for name, calls in _asked(steps[-1].metrics) if name != NOT_COUNTED]
    listed = ", ".join(f"{name} ({calls:,.0f} calls)" for name, calls in names)
    yield Alarm(
        f"they ask for several models, and the policy answers all and is trained on all: {listed}",
        "say what each name is with actor.agent.models: policy, policy-untrained or a server's URL",
    )
