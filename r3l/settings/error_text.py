"""Explains what is wrong with a setting, in one line."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from r3l.errors import did_you_mean

RULES = {
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "string": "must be text",
    "dict": "must be a mapping of settings",
    "model": "must be a mapping of settings",
    "list": "must be a list",
    "tuple": "must be a list",
    "finite_number": "must be a finite number",
}
"""The rule that a value breaks, by the beginning of pydantic's error type."""
LIMITS = {
    "greater_than_equal": ("ge", "must be at least"),
    "greater_than": ("gt", "must be more than"),
    "less_than_equal": ("le", "must be at most"),
    "less_than": ("lt", "must be less than"),
}

SYNONYMS = {
    "learning_rate": "learner.lr",
    "batch_size": "learner.groups_per_step",
    "train_batch_size": "learner.groups_per_step",
    "per_device_train_batch_size": "learner.tokens_per_micro_batch",
    "micro_batch_size": "learner.tokens_per_micro_batch",
    "gradient_accumulation_steps": "learner.tokens_per_micro_batch",
    "epochs": "learner.steps",
    "num_epochs": "learner.steps",
    "num_train_epochs": "learner.steps",
    "total_epochs": "learner.steps",
    "max_steps": "learner.steps",
    "total_steps": "learner.steps",
    "num_steps": "learner.steps",
    "iterations": "learner.steps",
    "lr_scheduler": "learner.schedule",
    "lr_scheduler_type": "learner.schedule",
    "warmup": "learner.warmup_steps",
    "warmup_ratio": "learner.warmup_steps",
    "max_grad_norm": "learner.grad_clip",
    "clip_grad": "learner.grad_clip",
    "save_steps": "learner.checkpoint_every",
    "save_freq": "learner.checkpoint_every",
    "lora_rank": "learner.lora.rank",
    "lora_r": "learner.lora.rank",
    "r": "learner.lora.rank",
    "lora_alpha": "learner.lora.alpha",
    "target_modules": "learner.lora.targets",
    "bf16": "learner.dtype",
    "torch_dtype": "learner.dtype",
    "max_tokens": "actor.max_response_tokens",
    "max_new_tokens": "actor.max_response_tokens",
    "max_completion_length": "actor.max_response_tokens",
    "max_completion_tokens": "actor.max_response_tokens",
    "max_response_length": "actor.max_response_tokens",
    "response_length": "actor.max_response_tokens",
    "max_length": "actor.max_model_len",
    "max_seq_len": "actor.max_model_len",
    "max_seq_length": "actor.max_model_len",
    "max_prompt_length": "actor.max_model_len",
    "context_length": "actor.max_model_len",
    "temp": "actor.temperature",
    "tool_call_parser": "actor.agent.tool_parser",
    "num_generations": "algorithm.group_size",
    "rollout_n": "algorithm.group_size",
    "rollouts": "algorithm.group_size",
    "samples_per_prompt": "algorithm.group_size",
    "n_samples": "algorithm.group_size",
    "beta": "algorithm.kl_coef",
    "kl_beta": "algorithm.kl_coef",
    "kl_coefficient": "algorithm.kl_coef",
    "kl_loss_coef": "algorithm.kl_coef",
    "epsilon": "algorithm.clip",
    "clip_range": "algorithm.clip",
    "clip_ratio": "algorithm.clip",
    "sync_every": "learner.publish_every",
    "sync_interval": "learner.publish_every",
    "off_policy": "buffer.max_staleness",
    "staleness": "buffer.max_staleness",
    "eval_every": "eval.every",
    "eval_steps": "eval.every",
    "test_freq": "eval.every",
    "eval_tasks": "eval.tasks",
    "num_tasks": "env.train_tasks",
    "dataset": "env.options",
    "model_name": "model",
    "model_path": "model",
    "model_name_or_path": "model",
    "loggers": "log",
    "report_to": "log",
    "random_seed": "seed",
}
"""Names of settings in other systems, and the setting that comes nearest."""


def one_line(root: type[BaseModel], error: ValidationError) -> str:
    """Explains the first fault in `error`: the setting, its rule and the user's value."""
    first = error.errors()[0]
    key, section = _located(root, first["loc"])
    kind, given = first["type"], shown(first["input"])
    context = first.get("ctx", {})
    if kind == "extra_forbidden":
        name, known = str(first["loc"][-1]), ", ".join(section.model_fields)
        keys = list(all_keys(root))
        guess = did_you_mean(name, section.model_fields)
        guess = _of_other_systems(name, keys) or guess
        if not guess and key not in keys:
            guess = did_you_mean(name, keys)
        parent = key.removesuffix(f".{name}")
        others = [s for s in _sections_in(root, parent) if name in s.model_fields]
        if others:  # settings of other algorithms
            names = ", ".join(str(_default_name(other)) for other in others)
            guess = f" to {parent}={_default_name(section)}, known to {names}"
        return f"config key {key}: unknown{guess}; this section knows {known}"
    if kind == "union_tag_invalid":
        tag, known = str(context["tag"]), str(context["expected_tags"]).replace("'", "")
        guess = did_you_mean(tag, known.split(", "))
        return f"config {key}: unknown {key} {tag!r:.200}{guess}; known: {known}"
    if kind == "value_error":
        message = str(context["error"])
        if message.startswith("config "):  # a class of the user's own has settings of its own
            return message
        named = message.startswith((f"{key} ", f"{key}: ", f"{key}."))
        return f"config {'' if named else f'{key}: '}{message}" if key else f"config: {message}"
    if kind == "literal_error":
        values = str(context["expected"]).replace("'", "").replace(" or ", ", ")
        guess = did_you_mean(str(first["input"]), values.split(", "))
        rule = f"must be one of {values}{guess}"
    elif kind in LIMITS:
        limit, words = LIMITS[kind]
        rule = f"{words} {str(context[limit]).removesuffix('.0')}"
    elif kind == "missing":
        return f"config {key}: is missing in {given}"
    elif kind == "too_long":
        rule = f"must have at most {context['max_length']} values"
    else:
        rule = next((words for start, words in RULES.items() if kind.startswith(start)), "")
    return f"config {key or 'file'}: {rule or first['msg']}, not {given}"


def setting_called(name: str, root: type[BaseModel]) -> str:
    """Returns the key of the setting that the user, or another system, calls `name`; "" if there is
    none, or if several sections have one. Ignores the dashes of an option."""
    word = name.strip("-").lower().replace("-", "_")
    keys = set(all_keys(root))
    sections = {key.rpartition(".")[0] for key in keys}
    own = [key for key in keys - sections if key.rpartition(".")[2] == word]
    meant = SYNONYMS.get(word, "")
    return own[0] if len(own) == 1 else meant if meant in keys else ""


def _of_other_systems(name: str, keys: Sequence[str]) -> str:
    """Suggests the setting that other systems call `name`; "" if there is none. `keys`: those of
    all sections, or of the section that has the setting."""
    meant = SYNONYMS.get(name.lower().replace("-", "_"), "")
    found = next((key for key in (meant, meant.rpartition(".")[2]) if key in keys), "")
    return f" (did you mean {found}?)" if found else ""


def shown(value: Any) -> str:
    """Writes a value in the form of a settings file, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:79]}…"


def all_keys(section: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yields the key of every setting in the form users write, such as learner.lr."""
    for name in section.model_fields:
        yield prefix + name
        for inner in _sections_in(section, name):
            yield from all_keys(inner, f"{prefix}{name}.")


def _located(root: type[BaseModel], location: Sequence[int | str]) -> tuple[str, type[BaseModel]]:
    """Finds the setting at the location that pydantic's error gives. Returns the setting's key as
    users write it, and the setting's section.

    After `algorithm`, the location has the algorithm's name; the key does not.
    """
    key: list[str] = []
    holder = root
    inner: list[type[BaseModel]] = []
    for part in location:
        chosen = [section for section in inner if len(inner) > 1 and _default_name(section) == part]
        if chosen:
            inner = chosen
            continue
        key.append(str(part))
        if isinstance(part, str):
            holder = inner[0] if inner else root
            inner = _sections_in(holder, part)
    return ".".join(key), holder


def _sections_in(holder: type[BaseModel], key: str) -> list[type[BaseModel]]:
    """Returns the sections a key may hold: several for `algorithm`, at most one for other keys."""
    if key not in holder.model_fields:
        return []
    annotation = holder.model_fields[key].annotation
    kinds = (annotation, *get_args(annotation))
    return [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]


def _default_name(section: type[BaseModel]) -> object:
    return section.model_fields["name"].default if "name" in section.model_fields else None
