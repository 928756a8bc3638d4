"""Checks the model: its chat template, its training, and its first steps in each environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from actors.gateway.other_models import OtherModels
from actors.gateway.parsers import reader_of
from envs.builtin.policy import builtin_policy, model_path
from envs.preflight import FirstStep
from launch.checks.draft import Draft
from learner import checkpoint
from learner.step.deepspeed_config import deepspeed_config
from learner.step.lora_targets import check_targets
from learner.warmup.recipe import warmed_for
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.model_folder import check_checksums, check_model_folder, model_digest, read_tokenizer
from r3l.records import Task
from r3l.rollout.chat import ChatFormat, EarlierReasoning
from r3l.rollout.reflection import SHORTEST
from r3l.settings.actor import ActorConfig


def check_model(draft: Draft) -> None:
    """Refuses a model that cannot be loaded or has no usable chat template."""
    _ = draft.model if draft.options.dry_run else draft.chat


def check_agent(draft: Draft) -> None:
    """Refuses a chat template or a parser with which an agent's calls cannot be answered, and
    another model's server without its key."""
    if draft.config.env.has_agents and not draft.options.dry_run:
        OtherModels(draft.config.actor.agent.models)
        reader_of(draft.chat, draft.config.actor.agent)


def resolve_model(name: str, earlier_reasoning: EarlierReasoning = "refuse") -> Path:
    """Finds the folder of the model called `name`. Raises UserError if the model cannot be loaded
    or its chat template is not usable."""
    folder = model_path(name)
    check_model_folder(folder, f"model {name}")
    check_checksums(folder, f"model {name}")
    ChatFormat(read_tokenizer(folder, f"model {name}"), earlier_reasoning=earlier_reasoning)
    return folder


def check_learner(draft: Draft) -> None:
    """Refuses settings of the learner that cannot work:

    - a DeepSpeed setting that the learner sets itself,
    - a setting that its device does not support,
    - adapters for layers that the model does not have.
    """
    if draft.config.learner.attention == "flash_attention_2" and draft.requested.device == "cpu":
        raise UserError(
            "learner.attention=flash_attention_2: needs a GPU; set learner.attention=sdpa"
        )
    deepspeed_config(draft.config.learner, bf16=draft.in_bfloat16)
    check_targets(draft.config.learner.lora, draft.model)


def check_checkpoint(draft: Draft) -> None:
    """Refuses to resume from a checkpoint that does not match the settings."""
    newest = checkpoint.latest(draft.options.run / checkpoint.CHECKPOINTS)
    if draft.options.resume and newest is not None:
        dtype = "torch.bfloat16" if draft.in_bfloat16 else "torch.float32"
        checkpoint.check(
            newest, draft.config.learner, dtype=dtype, model_digest=model_digest(draft.model)
        )


def check_first_steps(draft: Draft) -> None:
    """Refuses an environment whose first step fails, a first prompt that is too long, and
    reflections that cannot fit."""
    if steps := draft.first_steps:
        lengths = [steps[task.task_id].prompt for task in draft.tasks]
        check_first_prompts(draft.model, draft.config.actor.max_model_len, draft.tasks, lengths)
        algorithm = draft.config.algorithm.build()
        if algorithm.plan().distilled and algorithm.exploration.guidance != "critique":
            check_reflections(draft.config.actor, draft.chat, [*steps.values()])


def check_reflections(actor: ActorConfig, chat: ChatFormat, steps: Sequence[FirstStep]) -> None:
    """Refuses a budget or a context that is too small for the shortest reflection on one step."""
    shortest = len(chat.tokenizer.encode(SHORTEST, add_special_tokens=False)) + 1
    if actor.max_reflection_tokens < shortest:
        raise UserError(
            f"actor.max_reflection_tokens={actor.max_reflection_tokens}: the shortest reflection "
            f"has {shortest} tokens; raise it, 500 are common"
        )
    asked = min(step.reflection_prompt for step in steps)
    if asked + shortest > actor.max_model_len:
        raise UserError(
            f"actor.max_model_len={actor.max_model_len}: the prompt for a reflection on one step "
            f"has {asked} tokens, which leaves no room for a reflection; raise it"
        )


def check_first_prompts(
    model: Path, max_model_len: int, tasks: Sequence[Task], lengths: Sequence[int]
) -> None:
    """Refuses a first prompt that fills the context. `lengths`: each task's prompt, in tokens."""
    settings = json.loads((model / "config.json").read_bytes())
    most = settings.get("max_position_embeddings") or max_model_len
    for task, length in zip(tasks, lengths, strict=True):
        if length >= max_model_len:
            raise UserError(
                f"actor.max_model_len={max_model_len}: the first prompt of task {task.task_id} has "
                f"{length} tokens, which leaves no room for a response; raise it"
            )
        if length >= most:
            raise UserError(
                f"model {model}: its context of {most} tokens is shorter than the first prompt of "
                f"task {task.task_id}, {length} tokens; choose a model with a longer context"
            )


def check_world(draft: Draft) -> None:
    """Refuses to train the shipped policy in an environment it does not know, unless the user chose
    that model."""
    named = "model" in draft.config.model_fields_set
    if not named and (foreign := foreign_world(draft.settled)):
        raise UserError(foreign)


def foreign_world(config: RunConfig) -> str:
    """Returns a warning if the shipped policy does not know an environment of the run, else ""."""
    if Path(config.model) != builtin_policy():
        return ""
    known = [world.env for world in warmed_for(builtin_policy())]
    unknown = next((name for name in config.env.names if name not in known), None)
    if unknown is None:
        return ""
    small = f"r3l-learner warmup {' '.join(f'--env {n}' for n in config.env.names)} --out runs/warm"
    remedy = f", or make a small one for it: {small}" if not config.env.has_agents else ""
    return (
        f"env {unknown}: the shipped policy, which is trained if --model is left out, knows only "
        f"{', '.join(known)}; give a --model{remedy}"
    )
