"""Explains from a run's lines why it learns little or nothing. Names settings that would help.

lines ─► Evidence ─► RULES ─► reasons ─► console (LearningWatch), `status`, `doctor`, report

A rule is a function of the evidence that yields reasons. To add one, append it to RULES.
"""

from collections.abc import Callable, Iterator, Sequence
from statistics import NormalDist
from typing import NamedTuple

from launch.inspection.evidence import ENOUGH, LOOKED_AT, Evidence, change
from launch.inspection.reward_course import WINDOW
from learner.evaluation.metrics import wilson
from r3l.run.files.progress_lines import EvalLine, History, StepLine

GOES_BACK = 512
"""How many steps a restart may undo without loss of the evidence before them. A learner goes back
to its last checkpoint, or to one before it."""
NEARLY_ALL = 0.95
A_THIRD = 1 / 3
FALLS = 0.8
"""A share that falls below this part of what it was is only noted."""
RARE = 600
"""Fewer attempts without a success raise no alarm: at one success in 200 attempts, this many have
none with a probability of 5 %."""
UNLIKELY = 0.01
RETRIES = 150
"""This many retries without a better one raise an alarm: then at most 2 % of retries are better
(with 95 % confidence)."""
READABLE = 0.2  # share of the reflections
SEEN = 0.2  # share of the failures that reflections call one
FLAT_ENTROPY = 0.01  # nats/token
SINKS, GROWS_BY = 0.2, 0.5  # part of the entropy at first; nats/token above twice that
SOLVED = 0.9  # success, or best reward of a group, at which little is left to learn
LOW_ESS, HIGH_KL, FAR = 0.3, 1.0, 10.0  # share, nats/token, nats/token to the reference model
UNCHANGED = 1e-3  # share of the elements of the weights
LEAST_TASKS = 20  # of an evaluation, so that its shares and mean rewards say something
RISK = 0.005
"""Probability that a metric of an unchanged policy is ever found clearly below its first
evaluation, however many evaluations there are."""
FROM_BEST = 1.2
"""Further factor of the intervals in a comparison with the best evaluation, which was chosen
because it was high. With it, 50 evaluations of an unchanged policy give a false alarm in 0.8 % of
runs for a metric, and in at most 1.6 % for success and reward: in 2000 simulated runs of 20 to 400
tasks of the same difficulty, which is the worst case."""
WARM_UP = "warm the model up with r3l-learner warmup"


class Reason(NamedTuple):
    """`what`: why a run learns little or nothing. `remedy`: what to do about it. `name`: the rule's
    name. `alarm`: whether something is wrong; else it is a note."""

    what: str
    remedy: str
    name: str = ""
    alarm: bool = True


def reasons(steps: Sequence[StepLine], evaluations: Sequence[EvalLine] = ()) -> list[Reason]:
    """Finds why a run teaches its policy little or nothing, alarms first. Judges once there are
    LOOKED_AT steps, ENOUGH attempts or an evaluation."""
    return of_evidence(Evidence(steps, evaluations))


def of_evidence(evidence: Evidence) -> list[Reason]:
    """Applies all rules. Returns their reasons, alarms first."""
    found = [reason for rule in RULES for reason in rule(evidence)]
    return sorted(found, key=lambda reason: not reason.alarm)


class LearningWatch:
    """Reports a reason when it appears, and again if it returns after LOOKED_AT lines without it.
    `history`: lines of earlier launches. Keeps the last GOES_BACK steps or more, so that `go_back`
    reads no file."""

    def __init__(self, history: History | None = None) -> None:
        self._lines = 0
        self._seen: dict[tuple[str, bool], int] = {}
        self._before = Evidence()  # the lines before `_recent`
        self._recent = history or History([], [])
        self._shorten()
        self.go_back(self._recent.reached)

    def go_back(self, step: int) -> None:
        """Drops the steps after the one from which a learner goes on. If fewer steps are kept, the
        evidence begins anew. Evaluations still count, as in r3l.run.files.progress_lines: the
        learner does not evaluate a version again if it has reported its evaluation."""
        steps = [line for line in self._recent.steps if line.step <= step]
        if self._before.steps and self._before.steps[-1].step > step:
            self._before = self._before.only_evaluations()
        self._recent = History(steps, [*self._recent.evaluations])
        self._weigh()

    def _weigh(self) -> None:
        """Makes the evidence anew, with each evaluation after the steps that made its version."""
        self._evidence = self._before.copy()
        self._evidence.add(self._recent.steps, self._recent.evaluations)

    def _shorten(self) -> None:
        """Moves the oldest lines into `_before` if there are twice as many as are kept."""
        steps, evaluations = self._recent.steps, self._recent.evaluations
        if len(steps) < 2 * GOES_BACK:
            return
        moved, kept = steps[:-GOES_BACK], steps[-GOES_BACK:]
        last = moved[-1].step
        self._before.add(moved, [line for line in evaluations if line.step <= last])
        self._recent = History(kept, [line for line in evaluations if line.step > last])

    def lines(self, line: StepLine | EvalLine) -> list[str]:
        """Returns the lines to show after a step or an evaluation."""
        if isinstance(line, StepLine):
            self._recent.steps.append(line)
            if any(each.step >= line.step for each in self._recent.evaluations[-1:]):
                self._weigh()  # after a restart, evaluations are ahead of the steps
            else:
                self._evidence.add_step(line)
            self._shorten()
        else:
            self._evidence.add_evaluation(line)
            self._recent.evaluations.append(line)
        self._lines += 1
        said = []
        for reason in of_evidence(self._evidence):
            key = (reason.name or reason.remedy, reason.alarm)
            if self._lines - self._seen.get(key, -LOOKED_AT) > LOOKED_AT:
                said.append(f"{heading(reason)}: {reason.what}; {reason.remedy}")
            self._seen[key] = self._lines
        return said


def heading(reason: Reason) -> str:
    """Returns the words that precede a reason."""
    return "learns little or nothing" if reason.alarm else "note on learning"


def _cut(evidence: Evidence) -> Iterator[Reason]:
    """Attempts or responses that are cut off: more than a third."""
    if cut := _share_cut(evidence, "cut_attempts"):
        share, trend, falls = cut
        yield Reason(
            f"{share:.0%} of the attempts are cut off by the context{trend}",
            "raise actor.max_model_len, or shorten responses or observations",
            "cut attempts",
            alarm=not falls,
        )
    elif cut := _share_cut(evidence, "cut_responses"):
        share, trend, falls = cut
        yield Reason(
            f"{share:.0%} of the responses are cut off at their limit{trend}",
            "raise actor.max_response_tokens",
            "cut responses",
            alarm=not falls,
        )


def _share_cut(evidence: Evidence, tag: str) -> tuple[float, str, bool] | None:
    """Returns a share that is clearly above a third, how it changed, and whether it falls."""
    known = evidence.share(tag)
    if known is None or wilson([known[0]] * known[1])[0] <= A_THIRD:
        return None
    tag, trend = f"group/{tag}", ""
    older, newer = evidence.halves
    first, lately = evidence.first.mean(tag), newer.mean(tag)
    if older.values(tag) and abs(lately - first) > 0.1:
        trend = f" ({first:.0%} at first, {lately:.0%} lately)"
    return known[0], trend, newer.mean(tag) < FALLS * older.mean(tag)


def _answers(evidence: Evidence) -> Iterator[Reason]:
    recent, tag = evidence.recent, "group/part_answered"
    if recent.enough and recent.values(tag) and recent.mean(tag) <= 1 - NEARLY_ALL:
        yield Reason(
            "no response gives an answer in the form that the environment asks for",
            f"{WARM_UP}, or change the system prompt; r3l-buffer view shows the responses",
            "no answers",
        )


def _success(evidence: Evidence) -> Iterator[Reason]:
    """No success in many attempts. Fewer than RARE without one are a note: success may be rare,
    and then retries pay."""
    since, before = evidence.since_success, evidence.attempts - evidence.since_success
    if _never_succeeded(evidence):
        yield from _no_success(evidence)
    elif since >= RARE and (1 - min(evidence.successes / before, 1.0)) ** since < UNLIKELY:
        yield Reason(
            f"no success in the last {since:.0f} attempts; {evidence.successes:.0f} of the "
            f"{before:.0f} before succeeded",
            "go back to an earlier checkpoint with a lower learner.lr",
            "success lost",
        )


def _no_success(evidence: Evidence) -> Iterator[Reason]:
    attempts, often = evidence.since_success, evidence.evaluated
    tasks = evidence.evaluations[-1].tasks if often else 0
    if (count := attempts if attempts >= ENOUGH else tasks) < LEAST_TASKS:
        return
    learns = evidence.rises or evidence.course.rose  # rewards may end below a success
    alarm = attempts >= RARE and evidence.trend_known and not learns
    recent = evidence.recent
    if recent.mean("group/best_reward") >= SOLVED:  # a world whose rewards end just below 1
        return
    # Reflections that cannot be read yield no retry, and yet the algorithm is one of retries.
    retried = recent.mean("group/retries") > 0 or bool(recent.values("group/reflection_valid"))
    tested = f" and {often} evaluation{'s' * (often > 1)}" if often else ""
    yield Reason(
        f"no success{'' if alarm else ' yet'} in {attempts:.0f} attempts{tested}: at most "
        f"{min(3 / count, 1):.1%} succeed (95 %); the mean reward is "
        f"{recent.mean('group/reward_mean'):.2g}, the rewards of "
        f"{recent.mean('group/no_contrast'):.0%} of the groups are equal",
        f"{WARM_UP}, let the environment reward a part of a task, "
        f"{'' if retried else 'set algorithm=r3l, whose retries find rarer successes, '}"
        "or choose easier tasks with env.options; a success is a reward of 1",
        "no success",
        alarm=alarm,
    )


def _never_succeeded(evidence: Evidence) -> bool:
    """Whether no attempt of training has succeeded, nor a task of the newest evaluation unless
    RARE attempts without a success followed."""
    tested = any(line.success > 0 for line in evidence.evaluations[-1:])
    return not evidence.successes and (not tested or evidence.since_success >= RARE)


def _contrast(evidence: Evidence) -> Iterator[Reason]:
    """Groups without contrast, whose tasks are solved or taught the policy nothing."""
    recent = evidence.recent
    if not recent.all("group/no_contrast", lambda share: share == 1.0):
        return
    reward = recent.mean("group/reward_mean")
    what = f"the rewards of every group are equal (their mean is {reward:.3g})"
    if recent.mean("group/success_base") >= NEARLY_ALL:
        yield Reason(
            what,
            "the tasks are solved already: choose harder ones with env.options",
            "solved",
            alarm=evidence.first.mean("group/success_base") >= NEARLY_ALL,
        )
    elif not (evidence.attempts and _never_succeeded(evidence)):  # which _no_success explains
        yield Reason(
            what,
            f"choose easier tasks with env.options, or {WARM_UP}; "
            "a larger algorithm.group_size finds rarer successes",
            "no contrast",
            alarm=evidence.since_contrast >= RARE or not evidence.attempts,
        )


def _untrained(evidence: Evidence) -> Iterator[Reason]:
    """A few steps that trained nothing. After more steps, other rules say why."""
    trained = [step.metrics.get("learner/trained_tokens") for step in evidence.steps]
    if trained and trained.count(0.0) == len(trained) and not evidence.recent.enough:
        yield Reason(
            f"no token was trained in {len(trained)} steps, so the policy is what it was: the "
            "rewards of every group were equal",
            f"train more steps or larger groups, or {WARM_UP}",
            "untrained",
            alarm=False,
        )


def _reflections(evidence: Evidence) -> Iterator[Reason]:
    """Reflections that cannot be read, or that help no retry."""
    recent, valid = evidence.recent, "group/reflection_valid"
    if recent.enough and recent.values(valid) and recent.mean(valid) < READABLE:
        unread = evidence.steps[-1].unread
        example = f"; one begins {unread}" if unread else ""
        yield Reason(
            f"{1 - recent.mean(valid):.0%} of the reflections cannot be read (mostly "
            f"{recent.most_frequent('group/reflection_')}){example}",
            f"raise actor.max_reflection_tokens, set algorithm.constrained_reflection=true, "
            f"{WARM_UP}, or set algorithm=grpo, which samples no reflections",
            "unread reflections",
        )
    elif _no_retry_is_better(evidence):
        yield Reason(
            "no retry is better than its base attempt",
            f"the model does not follow its own advice: {WARM_UP}, or set algorithm=grpo, which "
            "samples no reflections",
            "useless retries",
        )
    yield from _unseen_failures(evidence)


def _unseen_failures(evidence: Evidence) -> Iterator[Reason]:
    """Reflections that call most failures a success: no retry follows. It is a note, since the
    policy still learns from its attempts."""
    recent, called = evidence.recent, "group/trigger_rate"
    failed, seen = 1 - recent.mean("group/success_base"), recent.mean(called)
    readable = recent.mean("group/reflection_valid") >= READABLE
    judged = recent.enough and recent.values(called) and failed > 1 - SOLVED
    if judged and readable and seen < SEEN * failed:
        yield Reason(
            f"{failed:.0%} of the attempts fail, but only {seen:.0%} of the reflections call for "
            "a retry: they call failures a success",
            f"{WARM_UP}, or for more steps, or set algorithm=grpo, which samples no reflections; "
            "r3l-buffer view shows the reflections",
            "unseen failures",
            alarm=False,
        )


def _no_retry_is_better(evidence: Evidence) -> bool:
    """Whether retries help nothing. A retry of a success cannot be better."""
    if evidence.recent.mean("group/success_base") >= SOLVED:
        return False
    if not evidence.attempts:  # the steps of an earlier r3l do not count retries
        return evidence.recent.all("group/improvement_rate", lambda share: share == 0.0)
    rare = _never_succeeded(evidence) and evidence.attempts < RARE
    return evidence.since_improvement >= RETRIES and not rare


def _reward(evidence: Evidence) -> Iterator[Reason]:
    """A mean reward that is far below its best. The tasks may have become harder: it is a note if
    the evaluations do not become worse."""
    course = evidence.course
    if course.fell and evidence.recent.mean("group/success_base") < SOLVED:
        tested = [line.success for line in evidence.evaluations]  # the first, the best, the newest
        holds = evidence.evaluated > 2 and tested[2] >= tested[1]
        yield Reason(
            f"the mean reward fell from {course.best:.2g}, its best, to {course.last:.2g} (each "
            f"over {WINDOW} blocks of {ENOUGH} attempts or more)",
            "go back to an earlier checkpoint, or to best/, with a lower learner.lr, unless the "
            "tasks became harder",
            "reward fell",
            alarm=not holds,
        )


def _entropy(evidence: Evidence) -> Iterator[Reason]:
    """An entropy that is gone, or that sinks or grows while the mean reward does not rise. It is a
    note if the reward has clearly risen before: a policy that has learned is surer."""
    tag, solved = "learner/entropy", evidence.recent.mean("group/success_base") >= SOLVED
    first = next(iter(evidence.first.values(tag)), 0.0)
    now = evidence.last.median(tag)
    if now < FLAT_ENTROPY and not solved:
        yield Reason(
            f"the policy's entropy is {now:.2g} nats a token: it always says the same",
            "go back to an earlier checkpoint with a lower learner.lr, or raise actor.temperature",
            "no entropy",
            alarm=not evidence.course.rose,
        )
    elif evidence.trend_known and not evidence.rises:
        what = (
            f"the policy's entropy went from {first:.2g} to {now:.2g} nats a token, and the mean "
            "reward does not rise"
        )
        if now < SINKS * first and not solved:
            yield Reason(
                what,
                "go back to an earlier checkpoint with a lower learner.lr, or raise "
                "actor.temperature",
                "entropy sinks",
                alarm=not evidence.course.rose,
            )
        elif now > 2 * first + GROWS_BY:
            yield Reason(
                what,
                "go back to an earlier checkpoint with a lower learner.lr",
                "entropy grows",
                alarm=not evidence.course.rose,
            )


def _distances(evidence: Evidence) -> Iterator[Reason]:
    """A policy that is far from the one that sampled, or from the reference model."""
    last = evidence.last
    ess, kl = last.median("learner/behaviour_ess_base"), last.median("learner/behaviour_kl_base")
    if ess < LOW_ESS or kl > HIGH_KL:
        yield Reason(
            "the policy is far from the one that sampled: effective sample size "
            f"{ess:.2g} of the tokens, KL {kl:.2g} nats a token",
            "lower learner.lr or buffer.max_staleness",
            "far from the sampler",
        )
    if (reference := last.median("learner/kl_reference")) > FAR:
        yield Reason(
            f"the KL to the reference model is {reference:.2g} nats a token",
            "lower learner.lr or raise algorithm.kl_coef",
            "far from the reference",
        )


def _changes(evidence: Evidence) -> Iterator[Reason]:
    """Steps that change no weights, although they have a gradient."""
    # Not every step publishes weights (learner.publish_every); the first does so after its line.
    last, tag = evidence.last, "weights/patch_density"
    unchanged = last.all(tag, lambda share: share < UNCHANGED)
    if unchanged and last.mean("learner/grad_norm"):  # without one, rounding is not the reason
        yield Reason(
            f"a step changes {last.mean(tag):.1g} of the weights",
            "raise learner.lr: its updates are lost in rounding",
            "no change",
        )


def _evaluations(evidence: Evidence) -> Iterator[Reason]:
    """An evaluation that is clearly worse than the first one, or than the best one. Each further
    evaluation is another chance of a false alarm, so the intervals grow wider with their number."""
    if evidence.evaluated < 2:
        return
    first, best, newest = evidence.evaluations
    tags = ["success", "reward"] if newest.tasks >= LEAST_TASKS else ["success"]
    wider = _wider(evidence.evaluated - 1)
    for before, widen in ((first, wider), (best, wider * FROM_BEST)):
        for tag in tags:
            known = change(before, newest, tag, widen)
            if known is None or known.high >= 0:
                continue
            shown = change(before, newest, tag) or known
            yield Reason(
                f"the evaluated {tag} fell from {shown.before:.2f} at step {before.step} to "
                f"{shown.after:.2f} at step {newest.step}: by {shown.before - shown.after:.2f}, "
                f"95 % interval {-shown.high:.2f} to {-shown.low:.2f}",
                "go back to the checkpoint of that step, or to best/, with a lower learner.lr",
                "worse evaluation",
            )
            return


def _wider(comparisons: int) -> float:
    """Returns the factor that makes a 95 % interval wide enough for the newest of that many
    `comparisons`. The n-th one may be wrong with the probability RISK / (n (n + 1)); all of them
    together add up to RISK (Bonferroni)."""
    normal = NormalDist()
    wide = normal.inv_cdf(1 - RISK / (comparisons * (comparisons + 1)))
    return wide / normal.inv_cdf(0.975)


def _tools(evidence: Evidence) -> Iterator[Reason]:
    """Tools that agents offer and the policy never calls, or lately does not call. It is a note if
    the tasks are solved without them, or the reward rises."""
    if not evidence.steps:
        return
    oldest, newest = evidence.steps[0].metrics, evidence.steps[-1].metrics
    offered, called, unread = (
        newest.get(f"agent/{name}", 0.0)
        for name in ("with_tools", "tools_called", "tool_parse_failed")
    )
    if called:  # then only what happened lately counts
        offered -= oldest.get("agent/with_tools", 0.0)
        called -= oldest.get("agent/tools_called", 0.0)
    if offered < ENOUGH or called > 0:
        return
    solved = evidence.recent.mean("group/success_base") >= SOLVED
    broken = f"; {unread:.0f} replies hold a call that cannot be read" if unread else ""
    yield Reason(
        f"{offered:.0f} calls of agents offered tools, and no reply called one{broken}",
        "let the system prompt say when to call which tool, fine-tune the model on conversations "
        "that call them, or see actor.agent.tool_parser",
        "unused tools",
        alarm=not (solved or evidence.rises or evidence.course.rose),
    )


RULES: tuple[Callable[[Evidence], Iterator[Reason]], ...] = (
    _cut, _answers, _success, _contrast, _untrained, _reflections, _reward, _entropy, _distances,
    _changes, _evaluations, _tools,
)  # fmt: skip
