"""Uses a run's last steps to explain why it learns nothing. Names settings that would help."""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean
from typing import NamedTuple

from r3l.run.files.progress_lines import StepLine

LOOKED_AT = 5
"""How many of the last optimizer steps are examined."""
GAIN_STEPS = 20
NEARLY_ALL = 0.95
FLAT_ENTROPY = 0.01  # nats/token
SOLVED = 0.9  # success at which a flat entropy is no problem
LOW_ESS, HIGH_KL, FAR = 0.3, 1.0, 10.0  # share, nats/token, nats/token to the reference model
UNCHANGED = 1e-3  # share of the elements of the weights


class Reason(NamedTuple):
    """`what`: why a run learns little or nothing. `remedy`: what to do about it."""

    what: str
    remedy: str


class Recent:
    """The metrics of the last LOOKED_AT steps."""

    def __init__(self, steps: Sequence[StepLine]) -> None:
        self.metrics = [step.metrics for step in list(steps)[-LOOKED_AT:]]
        self.unread = steps[-1].unread

    def all(self, tag: str, holds: Callable[[float], bool], least: int = LOOKED_AT) -> bool:
        """Whether `least` or more steps have the metric, and all its values satisfy `holds`."""
        values = [metrics[tag] for metrics in self.metrics if tag in metrics]
        return len(values) >= least and all(map(holds, values))

    def mean(self, tag: str) -> float:
        """Returns the mean of a metric over the steps that have it; 0 if none has it."""
        values = [metrics[tag] for metrics in self.metrics if tag in metrics]
        return fmean(values) if values else 0.0

    def most_frequent(self, family: str) -> str:
        """Finds the largest metric that begins with `family`. Returns the rest of the name."""
        tags = {tag for metrics in self.metrics for tag in metrics if tag.startswith(family)}
        return max(tags, key=self.mean, default=family).removeprefix(family)


def reasons(steps: Sequence[StepLine]) -> list[Reason]:
    """Finds why the last LOOKED_AT steps taught the policy nothing; [] if there are fewer steps."""
    if len(steps) < LOOKED_AT:
        return []
    recent = Recent(steps)
    return [*_answers(recent), *_contrast(recent), *_reflections(recent), *_updates(recent)]


def guidance(steps: Sequence[StepLine]) -> Reason | None:
    """Reports the mean guidance gain (r3l.algorithms.guidance_gain) of the last GAIN_STEPS steps
    that measured a gain. Returns None if there are no such steps. Gives a remedy if guidance
    clearly does harm and the run has no gate."""
    tag = "group/guidance_gain"
    known = [step.metrics for step in steps if tag in step.metrics][-GAIN_STEPS:]
    if not known:
        return None
    slots = [metrics.get("group/guidance_slots", 1.0) for metrics in known]  # 1: of an older r3l
    gain = fmean((metrics[tag] for metrics in known), weights=slots)
    errors = [n * metrics[f"{tag}_se"] for n, metrics in zip(slots, known, strict=True)]
    error = math.hypot(*errors) / sum(slots)
    gated = "group/without_retries" in steps[-1].metrics
    harms = gain < -error < 0 and not gated
    remedy = "algorithm.gate=measured leaves retries out of most groups" if harms else ""
    return Reason(f"guidance gain: {gain:+.2f} ± {error:.2f} over another attempt", remedy)


class LearningWatch:
    """Reports a reason when it appears, and each time it comes back."""

    def __init__(self) -> None:
        self._steps: deque[StepLine] = deque(maxlen=LOOKED_AT)
        self._reported: set[str] = set()

    def lines(self, step: StepLine) -> list[str]:
        """Returns the lines to show after a step."""
        self._steps.append(step)
        found = reasons(self._steps)
        new = [reason for reason in found if reason.remedy not in self._reported]
        self._reported = {reason.remedy for reason in found}
        return [f"learns nothing: {reason.what}; {reason.remedy}" for reason in new]


def _answers(recent: Recent) -> Iterator[Reason]:
    if recent.all("group/cut_attempts", lambda share: share >= NEARLY_ALL):
        yield Reason(
            f"{recent.mean('group/cut_attempts'):.0%} of the attempts are cut off by the context",
            "raise actor.max_model_len, or shorten responses or observations",
        )
    elif recent.all("group/cut_responses", lambda share: share >= NEARLY_ALL):
        yield Reason(
            f"{recent.mean('group/cut_responses'):.0%} of the responses are cut off at their limit",
            "raise actor.max_response_tokens",
        )
    elif recent.all("group/part_answered", lambda share: share <= 1 - NEARLY_ALL):
        yield Reason(
            "no response gives an answer in the form that the environment asks for",
            "warm the model up with r3l-learner warmup, or change the system prompt; "
            "r3l-buffer view shows the responses",
        )


def _contrast(recent: Recent) -> Iterator[Reason]:
    if not recent.all("group/no_contrast", lambda share: share == 1.0):
        return
    reward = recent.mean("group/reward_mean")
    what = f"the rewards of every group are equal (their mean is {reward:.3g})"
    if recent.mean("group/success_base") >= NEARLY_ALL:
        yield Reason(what, "the tasks are solved already: choose harder ones with env.options")
    else:
        yield Reason(
            what,
            "choose easier tasks with env.options, or warm the model up with r3l-learner warmup; "
            "a larger algorithm.group_size finds rarer successes",
        )


def _reflections(recent: Recent) -> Iterator[Reason]:
    if recent.all("group/reflection_valid", lambda share: share == 0.0):
        example = f"; one begins {recent.unread}" if recent.unread else ""
        yield Reason(
            f"no reflection can be read (mostly {recent.most_frequent('group/reflection_')})"
            f"{example}",
            "raise actor.max_reflection_tokens, set algorithm.constrained_reflection=true, warm "
            "the model up with r3l-learner warmup, or set algorithm=grpo",
        )
    elif recent.all("group/improvement_rate", lambda share: share == 0.0):
        yield Reason(
            "no retry is better than its base attempt",
            "the model does not follow its own advice: warm it up with r3l-learner warmup, or set "
            "algorithm=grpo, which samples no reflections",
        )


def _updates(recent: Recent) -> Iterator[Reason]:
    solved = recent.mean("group/success_base") >= SOLVED
    if not solved and recent.all("learner/entropy", lambda nats: nats < FLAT_ENTROPY):
        yield Reason(
            f"the policy's entropy is {recent.mean('learner/entropy'):.2g} nats a token: it always "
            "says the same",
            "go back to an earlier checkpoint with a lower learner.lr, or raise actor.temperature",
        )
    ess, kl = "learner/behaviour_ess_base", "learner/behaviour_kl_base"
    if recent.all(ess, lambda share: share < LOW_ESS) or recent.all(kl, lambda k: k > HIGH_KL):
        yield Reason(
            "the policy is far from the one that sampled: effective sample size "
            f"{recent.mean(ess):.2g} of the tokens, KL {recent.mean(kl):.2g} nats a token",
            "lower learner.lr or buffer.max_staleness",
        )
    if recent.all("learner/kl_reference", lambda nats: nats > FAR):
        yield Reason(
            f"the KL to the reference model is {recent.mean('learner/kl_reference'):.2g} nats a "
            "token",
            "lower learner.lr or raise algorithm.kl_coef",
        )
    # Not every step publishes weights (learner.sync_every); the first does so after its line.
    unchanged = recent.all("weights/patch_density", lambda share: share < UNCHANGED, least=1)
    if unchanged and recent.mean("learner/grad_norm"):  # without one, rounding is not the reason
        yield Reason(
            f"a step changes {recent.mean('weights/patch_density'):.1g} of the weights",
            "raise learner.lr: its updates are lost in rounding",
        )
