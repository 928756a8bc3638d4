"""Whether stored groups can be trained on: by the model and the tokenizer that made them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from envs.builtin.policy import model_path
from r3l import config as configuration
from r3l.errors import UserError
from r3l.records import Group

NO_MATTER = {"dtype", "torch_dtype", "transformers_version", "_name_or_path", "use_cache"}
"""What two configurations of one architecture may have different."""


def check_models(stores: Sequence[Path], model: Path) -> None:
    """Raise UserError if a store was filled by a model of another architecture than the one in a
    folder. A store that lies outside its run, or whose model is gone, cannot say."""
    ours = _architecture(model)
    for store in stores:
        settings = store.absolute().parent / "config.yaml"
        if not settings.is_file():
            continue
        filled_by = model_path(configuration.load(settings).model)
        if not (filled_by / "config.json").is_file():
            continue
        theirs = _architecture(filled_by)
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                raise UserError(
                    f"store {store}: filled by the model {filled_by}, whose {key} is "
                    f"{theirs.get(key)!r:.60}; {model} has {ours.get(key)!r:.60}; train with that "
                    "model, or one trained from it"
                )


def check_texts(groups: Iterable[Group], tokenizer: Any, model: str) -> None:
    """Raise UserError if stored tokens are not those of a tokenizer: what they say then is not what
    was stored as the action."""
    for group in groups:
        for one in group.trajectories:
            for (start, end), action in zip(one.step_spans.tolist(), one.actions, strict=True):
                tokens = one.token_ids[start:end].tolist()
                said = str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()
                if said != action.strip():
                    raise UserError(
                        f"group {group.group_id}: its tokens say {said[:40]!r} to the tokenizer of "
                        f"{model}, but the action was {action[:40]!r}; train with the model whose "
                        "tokenizer filled this store"
                    )


def _architecture(folder: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((folder / "config.json").read_bytes())
    return {key: value for key, value in values.items() if key not in NO_MATTER}
