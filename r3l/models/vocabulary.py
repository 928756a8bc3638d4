"""Reads how many tokens a model knows, without loading it."""

import json
from typing import Any

from r3l.errors import UserError
from r3l.files.user_file import user_path
from r3l.models.model_path import builtin_policy


def vocabulary(model: str) -> int | None:
    """Returns the number of tokens that a model knows, from its `config.json`. `model`: a value of
    the setting of this name. None if the model has no folder on this machine."""
    try:
        folder = builtin_policy() if model == "builtin" else user_path(model)
        settings: Any = json.loads((folder / "config.json").read_bytes())
        size = settings.get("vocab_size") or settings["text_config"]["vocab_size"]
    except (OSError, ValueError, TypeError, KeyError, AttributeError, UserError):
        return None
    return size if isinstance(size, int) and size > 0 else None
