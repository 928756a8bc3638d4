"""Checks the model: its folder, its chat template, its training."""

import json
from pathlib import Path

from actors.gateway.address import check_certificate
from actors.gateway.other_models import OtherModels
from actors.gateway.parsers import reader_of
from learner import checkpoint
from learner.step.deepspeed_config import check_needs, deepspeed_config
from learner.step.lora_targets import check_targets
from learner.warmup.recipe import RECORD
from r3l.errors import UserError
from r3l.models.model_folder import (
    check_checksums,
    check_model_folder,
    model_digest,
    read_tokenizer,
)
from r3l.models.model_path import builtin_policy, model_path, shipped_tokenizer
from r3l.models.weight_files import check_trainable
from r3l.rollout.chat import ChatFormat
from r3l.run.config import RunConfig
from r3l.run.settings.learner import LearnerConfig


def model_folder(name: str) -> Path:
    """Finds the folder of the model called `name`, and checks its files. Raises UserError."""
    folder = model_path(name)
    check_model_folder(folder, f"model {name}")
    check_checksums(folder, f"model {name}")
    return folder


def chat_format(config: RunConfig, model: Path) -> ChatFormat:
    """Returns the model's chat format. Raises UserError if its chat template is not usable."""
    tokenizer = (
        shipped_tokenizer()
        if model == builtin_policy()
        else read_tokenizer(model, f"model {config.model}")
    )
    return ChatFormat(tokenizer, earlier_reasoning=config.actor.earlier_reasoning)


def check_agent(config: RunConfig, chat: ChatFormat) -> None:
    """Refuses a chat template or parser that is unfit for agents. Also refuses a model in
    `actor.agent.models` if its API key is missing, and a certificate that cannot be used."""
    if config.env.has_agents:
        if config.actor.agent.certificate:
            check_certificate(config.actor.agent.certificate)
        OtherModels(config.actor.agent.models)
        reader_of(chat, config.actor.agent)


def in_bfloat16(learner: LearnerConfig, device: str) -> bool:
    """Whether the learner's weights are in bfloat16. `device`: "cpu" or "gpu"."""
    return learner.dtype == "bfloat16" or (learner.dtype == "auto" and device == "gpu")


def check_learner(config: RunConfig, device: str, model: Path) -> None:
    """Refuses settings of the learner that cannot work:

    - a DeepSpeed setting that the learner sets itself,
    - a setting that its device does not support, or that the algorithm does not allow,
    - weights that are quantized,
    - adapters for layers that the model does not have.
    """
    learner = config.learner
    check_trainable(model, f"model {config.model}")
    if learner.attention == "flash_attention_2" and device == "cpu":
        raise UserError(
            "learner.attention=flash_attention_2: needs a GPU; set learner.attention=sdpa"
        )
    deepspeed_config(learner, bf16=in_bfloat16(learner, device))
    check_needs(config.algorithm.needs, learner, bf16=in_bfloat16(learner, device))
    check_targets(learner.lora, model)


def check_checkpoint(run: Path, learner: LearnerConfig, device: str, model: Path) -> None:
    """Refuses to resume from a checkpoint that does not match the settings."""
    newest = checkpoint.latest(run / checkpoint.CHECKPOINTS)
    if newest is not None:
        dtype = "torch.bfloat16" if in_bfloat16(learner, device) else "torch.float32"
        checkpoint.check_resumable(newest, learner, dtype=dtype, model_digest=model_digest(model))


def check_world(config: RunConfig, settled: RunConfig) -> None:
    """If the user did not set `model`, refuses environments that the shipped policy does not know.
    `settled`: a copy of `config` with the model folder's path."""
    if "model" not in config.model_fields_set and (foreign := foreign_world(settled)):
        raise UserError(foreign)


def foreign_world(config: RunConfig) -> str:
    """Returns a warning if the run trains the shipped policy in an unknown environment, else ""."""
    if Path(config.model) != builtin_policy():
        return ""
    made = json.loads((builtin_policy() / RECORD).read_bytes())
    known = [world["env"] for world in made["worlds"]]
    unknown = next((name for name in config.env.names if name not in known), None)
    if unknown is None:
        return ""
    small = f"r3l-learner warmup {' '.join(f'--env {n}' for n in config.env.names)} --out runs/warm"
    remedy = f", or warm up a small one: {small}" if not config.env.has_agents else ""
    return (
        f"env {unknown}: the shipped policy, which is trained if --model is left out, knows only "
        f"{', '.join(known)}; give a --model{remedy}"
    )
