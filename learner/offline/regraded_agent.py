"""Grades a stored attempt of an agent again, from its calls."""

from __future__ import annotations

import json

from msgspec.structs import replace

from envs.agents.agent_result import graded, outcome_of
from r3l.errors import EnvironmentFailed
from r3l.records import Task, Trajectory
from r3l.rollout.env_calls import guarded, read_step
from r3l.rollout.env_interface import Environment
from r3l.views.tape import read_tape


async def regraded_agent(env: Environment, task: Task, attempt: Trajectory) -> Trajectory:
    """Gives the calls of an attempt to the grader. Returns the attempt with the new reward, reward
    parts and feedback. Raises EnvironmentFailed if the grader fails, as one does that needs the
    agent's folder, or if the tape was too long to keep its messages."""
    calls = [call for call in read_tape(attempt.extra.tape) if not call.model]
    if not any(call.messages for call in calls):
        raise EnvironmentFailed(
            "agent: its calls cannot be graded again, because their messages were too long to be "
            "stored",
            cause="grader_failed",
        )
    await guarded(lambda: env.reset(seed=task.seed, options=task.options))
    shown = [{"messages": call.messages, "reply": call.reply} for call in calls]
    answer = await guarded(lambda: env.step(json.dumps({"regrade": shown})))
    result = graded(json.loads(read_step(env.spec.name, answer)[0]))
    outcome = outcome_of(result, env.spec.success_threshold, attempt.finish)
    return replace(
        attempt,
        reward=outcome.reward,
        observations=(*attempt.observations[:-1], outcome.feedback),
        feedback=outcome.feedback,
        extra=replace(attempt.extra, reward_parts=outcome.parts),
    )
