"""Plays one task of an agent with the policy, and shows its calls as a chat.

    r3l-agent check agent.yaml --model [NAME]

Replies are sampled in this process, with plain PyTorch and the run's settings. This loads a model
in seconds, whereas vLLM's engine can take minutes to start. A run samples from the same
distribution with vLLM.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing
from functools import cached_property

from actors.agents.agent_attempt import AgentEnvironment, agents_served
from actors.agents.check_agent import play_attempt
from actors.agents.shown_calls import chat_lines
from actors.agents.trained_calls import trained_words
from actors.grammars.grammar_check import GrammarCheck
from envs.isolation.pool import environments_of_all
from envs.registry import tasks_of_all
from r3l.models.model_folder import check_model_folder, read_tokenizer
from r3l.models.model_path import model_path
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import SampleParams
from r3l.run.config import RunConfig
from r3l.training.local_policy import LocalPolicy


class TryingPolicy(LocalPolicy):
    """Lets another process try the grammar of a request, as an engine's actor does, and then
    compiles it in a thread. So a large schema is refused, or delays only its own request."""

    @cached_property
    def grammars(self) -> GrammarCheck:
        vocabulary = int(self.model.config.get_text_config().vocab_size)
        return GrammarCheck(
            self.chat.tokenizer, vocabulary, [self.chat.end_id], separators=[",", ":"]
        )

    async def check_grammar(self, params: SampleParams) -> None:
        """Raises RequestRefused if the grammar of a request cannot be followed."""
        await self.grammars.check(params)
        await asyncio.to_thread(self.rules.grammar, params.json_schema, params.structural_tag)

    def close(self) -> None:
        self.grammars.close()


def policy_of(config: RunConfig) -> TryingPolicy:
    """Loads the run's model. Raises UserError if it is not a model folder, or if its attention is
    not full attention."""
    import torch

    from r3l.training.model import load_whole
    from r3l.training.trainer import default_device

    folder, what, actor = model_path(config.model), f"model {config.model}", config.actor
    check_model_folder(folder, what)
    chat = ChatFormat(read_tokenizer(folder, what), earlier_reasoning=actor.earlier_reasoning)
    device = default_device()
    auto = "bfloat16" if device == "cuda" else "float32"
    dtype = getattr(torch, auto if actor.dtype == "auto" else actor.dtype)
    lm = load_whole(folder, dtype, what).to(device).requires_grad_(False)
    return TryingPolicy((lm, chat), seed=config.seed, context_length=actor.max_model_len)


async def check_with_model(config: RunConfig) -> AsyncIterator[tuple[str, bool]]:
    """Plays the first task once. Yields (line, whether the attempt has a reward)."""
    with closing(policy_of(config)) as policy:
        async with (
            environments_of_all(config.env, 1) as made,
            agents_served(made, config, policy) as make_env,
        ):
            (task,) = tasks_of_all(config.env, "train", 1)
            model = config.model
            yield f"task {task.task_id}: played once by the model {model}, in this process", True
            env = make_env(task)
            assert isinstance(env, AgentEnvironment)
            attempt = await play_attempt(env, task, config)
            for line in chat_lines(attempt.calls, recorded=attempt.reward is not None):
                yield line, True
            if attempt.reward is not None:
                yield trained_words(attempt.calls, config.actor.agent.train), True
            yield f"task {task.task_id}: {attempt.outcome}", attempt.reward is not None
