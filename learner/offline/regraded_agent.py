"""Grades a stored attempt of an agent again, from its calls."""

from __future__ import annotations

from msgspec.structs import replace

from envs.agents.agent_result import failed, graded, outcome_of
from envs.agents.agent_steps import run_process
from r3l.errors import EnvironmentFailed
from r3l.records import Task, Trajectory
from r3l.rollout.env_calls import guarded
from r3l.rollout.env_interface import Environment
from r3l.settings.actor import AgentConfig
from r3l.views.tape import read_tape


async def regraded_agent(
    env: Environment, task: Task, attempt: Trajectory, settings: AgentConfig
) -> Trajectory:
    """Gives the calls of an attempt to the grader. Returns the attempt with the new reward, reward
    parts and feedback. Raises EnvironmentFailed if there are no calls with messages, or if the
    grader fails."""
    calls = [call for call in read_tape(attempt.extra.tape) if not call.model]
    if not any(call.messages for call in calls):
        raise failed(
            "grader_failed",
            "agent: the attempt has no tape, or its messages were too long to be stored",
        )
    secret = [server.key for server in settings.models.values()]
    options = task.options | {"secret": secret, "stored": True}
    await guarded(lambda: env.reset(seed=task.seed, options=options))
    shown = [{"messages": call.messages, "reply": call.reply} for call in calls]
    state, in_time = await run_process(env, {"regrade": shown}, settings.timeout_s)
    try:
        outcome = outcome_of(graded(state, in_time), env.spec.success_threshold, attempt.finish)
    except EnvironmentFailed as error:
        raise failed("grader_failed", str(error)) from error
    return replace(
        attempt,
        reward=outcome.reward,
        observations=(*attempt.observations[:-1], outcome.feedback),
        feedback=outcome.feedback,
        extra=replace(attempt.extra, reward_parts=outcome.parts),
    )
