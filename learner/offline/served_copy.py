"""Trains without actors: a buffer service in the learner serves the groups of finished runs.

    stores ─► copy in the run's folder ─► buffer service, a thread ─► rank 0 draws and commits

The copy becomes the run's store. So ledger, --resume and replay work as in any run.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from buffer.server.service import Service, rules_of
from buffer.storage.store import Store
from buffer.tools.finished_copy import copy_finished, finished_groups
from learner.watchdog import heartbeat
from r3l.errors import UserError
from r3l.records import Group
from r3l.run.config import RunConfig
from r3l.run.settings.buffer import RetentionConfig

CHECKED = 8
"""How many groups of each store are checked against the tokenizer."""
NO_LIMIT = 1 << 31
ENDS_S = 30.0


def without_actors(config: RunConfig) -> RunConfig:
    """Returns the settings for a run without actors. Groups never become too stale and never leave
    the store. There are no evaluations."""
    kept = {"max_staleness": NO_LIMIT, "retention": RetentionConfig()}
    return config.model_copy(
        update={
            "buffer": config.buffer.model_copy(update=kept),
            "eval": config.eval.model_copy(update={"every": 0, "tasks": 0}),
        }
    )


@contextmanager
def served_copy(
    stores: Sequence[Path],
    folder: Path,
    config: RunConfig,
    tokenizer: Any,
    *,
    resume: bool,
) -> Iterator[str]:
    """Serves a copy of the stores' groups and yields the endpoint. With `resume`, uses an existing
    copy. Refuses stores that another tokenizer filled."""
    if folder.exists() and not resume:
        raise UserError(
            f"--run {folder.parent}: already has a store; add --resume or name a new folder"
        )
    if not folder.exists():
        _copy(stores, folder, config, tokenizer)
    with Store(folder, map_gib=config.buffer.map_gib) as store:
        service = Service(store, rules_of(config), "tcp://127.0.0.1:0")
        thread = threading.Thread(target=service.run, name="buffer service", daemon=True)
        thread.start()
        try:
            yield service.endpoint
        finally:
            service.stop()
            thread.join(ENDS_S)


def _copy(stores: Sequence[Path], to: Path, config: RunConfig, tokenizer: Any) -> None:
    """Checks the first groups of each store, then copies the finished groups of all stores."""
    contrast = config.algorithm.replaces_groups
    for folder in stores:
        with Store(folder, read_only=True) as store:
            for _, group in islice(finished_groups(store, contrast=contrast), CHECKED):
                check_texts(group, tokenizer, f"model {config.model}")
    copy_finished(
        stores,
        to,
        contrast=contrast,
        on_group=lambda group: heartbeat(f"to copy group {group.group_id}"),
    )


def check_texts(group: Group, tokenizer: Any, model: str) -> None:
    """Refuses a group whose tokens do not decode to its actions, because another tokenizer made
    them."""
    for attempt in group.trajectories:
        for (start, end), action in zip(attempt.step_spans.tolist(), attempt.actions, strict=True):
            tokens = attempt.token_ids[start:end].tolist()
            text = str(tokenizer.decode(tokens, skip_special_tokens=True)).strip()
            if text != action.strip():
                raise UserError(
                    f"group {group.group_id}: the tokenizer of {model} decodes an action to "
                    f"{text[:40]!r}, but the action was {action[:40]!r}; train with the model "
                    "whose tokenizer filled this store"
                )
