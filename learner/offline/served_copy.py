"""Training without actors: the finished groups of stores, served to the learner by a buffer service
of its own.

    stores ─► copy in the run's folder ─► buffer service, a thread ─► rank 0 draws and commits

The copy is the run's store: its ledger, resuming, and replay of its steps are those of any run.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from buffer.server.service import Service
from buffer.storage.store import Store
from buffer.tools.finished_copy import copy_finished, finished_groups
from learner.offline.origin_check import check_models, check_texts
from learner.watchdog import heartbeat
from r3l.config import RunConfig
from r3l.errors import UserError
from r3l.settings.buffer import RetentionConfig

CHECKED = 8
"""Groups of each store whose tokens are compared with their texts."""
NO_LIMIT = 1 << 31
ENDS_S = 30.0


def without_actors(config: RunConfig) -> RunConfig:
    """The settings of a run whose groups are there: none is too old, none leaves the store, and
    there is no actor to play an evaluation."""
    kept = {"max_staleness": NO_LIMIT, "late_groups": "expire", "retention": RetentionConfig()}
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
    model: Path,
    tokenizer: Any,
    *,
    resume: bool,
) -> Iterator[str]:
    """Serve a copy of the stores' groups at `folder`, which a resumed run has; yields the endpoint.

    Raises UserError for stores that another model filled.
    """
    check_models(stores, model)
    if folder.exists() and not resume:
        raise UserError(f"--run {folder.parent}: has a store; add --resume, or name a new folder")
    if not folder.exists():
        _copy(stores, folder, config, tokenizer)
    with Store(folder, map_gib=config.buffer.map_gib) as store:
        service = Service(store, config, "tcp://127.0.0.1:0")
        thread = threading.Thread(target=service.run, name="buffer service", daemon=True)
        thread.start()
        try:
            yield service.endpoint
        finally:
            service.stop()
            thread.join(ENDS_S)


def _copy(stores: Sequence[Path], to: Path, config: RunConfig, tokenizer: Any) -> None:
    """Copy the finished groups of the stores, after a check of the first groups of each."""
    contrast = config.algorithm.needs_contrast
    for place in stores:
        with Store(place, read_only=True) as store:
            first = islice(finished_groups(store, contrast=contrast), CHECKED)
            check_texts((group for _, group in first), tokenizer, f"model {config.model}")
    copy_finished(
        stores,
        to,
        contrast=contrast,
        on_group=lambda group: heartbeat(f"to copy group {group.group_id}"),
    )
