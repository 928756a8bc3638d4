"""The exact probability of a right answer, for tasks that one response decides.

    env.right_answers() ─► tokens of each answer, with the end of turn ─► Σ exp(Σ log-probability)

The engine that plays the attempts also computes the probabilities. So they belong to exactly the
policy that is evaluated, in the number format of its sampling, and no second copy of the model is
needed.
"""

import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from r3l.errors import EnvironmentFailed, EpisodeError, UserError
from r3l.records import SlotResult, Task
from r3l.rollout.attempt import start
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_calls import guarded, open_env, read_text
from r3l.rollout.env_interface import Playable, PlayedByAgent
from r3l.rollout.policy_interface import ScoringPolicy
from r3l.text import label

EXACT = "exact"
"""The name of the probability in Extra.scores and in evaluations."""


async def with_exact(
    result: SlotResult,
    task: Task,
    policy: ScoringPolicy,
    make_env: Callable[[], Playable],
    budget: int | None = None,
) -> SlotResult:
    """Adds the probability of the task's right answers to the scores of an attempt. If it cannot be
    computed, adds a fault `exact_CAUSE` instead. Arguments: see `answer_probability`."""
    attempt = result.trajectory
    if attempt is None:
        return result
    try:
        probability = await answer_probability(task, policy, make_env, budget)
    except EpisodeError as error:
        faults = (*attempt.faults, label(f"{EXACT}_{error.cause}"))
        return replace(result, trajectory=replace(attempt, faults=faults))
    scores = attempt.extra.scores | {EXACT: probability}
    extra = replace(attempt.extra, scores=scores)
    return replace(result, trajectory=replace(attempt, extra=extra))


async def answer_probability(
    task: Task,
    policy: ScoringPolicy,
    make_env: Callable[[], Playable],
    budget: int | None = None,
) -> float:
    """Computes the probability, at temperature 1, that the policy responds with one of the right
    answers that the environment lists. `budget`: the most tokens of a response; None: the
    environment's own limit. Raises EpisodeError if the environment lists no answers."""
    async with open_env(make_env) as env:
        if isinstance(env, PlayedByAgent):
            raise EnvironmentFailed(f"{env.spec.name}: an agent plays it", cause="no_answers")
        attempt = await start(task, policy.chat, env)
        answers = await listed_answers(env)
        spec = env.spec
    if not answers:
        raise EnvironmentFailed(f"{spec.name}: lists no answers of this task", cause="no_answers")
    if any(end in answer for end in spec.stop for answer in answers):
        raise EnvironmentFailed(f"{spec.name}: an answer holds a stop text", cause="bad_answers")
    prompt = [*attempt.read, *policy.chat.prompt_ids]
    limit = budget or spec.max_response_tokens
    total = 0.0
    for response in responses(policy.chat, answers, limit):
        scores = await policy.score([*prompt, *response], len(prompt))
        total += math.exp(math.fsum(scores))
    return min(total, 1.0)


def responses(chat: ChatFormat, answers: Sequence[str], limit: int) -> list[tuple[int, ...]]:
    """Returns the responses of at most `limit` tokens whose text is one of `answers`, each once.

    Each answer has the tokens that the tokenizer gives it, although the policy could also write it
    in other tokens. Leaves out answers that the tokenizer cannot write. A response of `limit`
    tokens is cut off before its end of turn.
    """
    found = dict[tuple[int, ...], None]()
    for answer in answers:
        tokens = chat.encode(answer)
        if chat.end_id in tokens or chat.text(tokens) != answer.strip():
            continue
        if 0 < len(tokens) <= limit:
            found[tokens if len(tokens) == limit else (*tokens, chat.end_id)] = None
    return list(found)


async def listed_answers(env: Playable) -> list[str]:
    """Returns the right answers that an environment lists for the task to which it is reset; [] if
    it lists none. Raises EnvironmentFailed."""
    listing = getattr(env, "right_answers", None)
    if not callable(listing):
        return []
    name, answers = env.spec.name, await guarded(listing)
    if not isinstance(answers, list | tuple):
        kind = type(answers).__name__
        raise EnvironmentFailed(
            f"{name}: right_answers returned {kind}; return a list of texts", cause="bad_answers"
        )
    return [read_text(name, "answers", answer) for answer in answers]


def without_answers(task: Task) -> UserError:
    """Returns the error of `eval.exact` for a task without listed answers."""
    return UserError(
        f"eval.exact=true: env {task.env} lists no right answers of task {task.task_id}: no single "
        "response decides an attempt, or too many would be right; leave eval.exact out"
    )
