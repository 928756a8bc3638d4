"""What a run's steps computed, by kind of row, from its store."""

from collections import defaultdict
from pathlib import Path

from buffer.storage.store import Store
from buffer.tools.store_reads import trained_draw
from r3l.algorithms.batch import Batch
from r3l.algorithms.rows import IMITATION, Row
from r3l.run.files.run_folder import RunFolder
from r3l.training.prefix_forest import plant

ALL = "all"


def computed_tokens(run: Path) -> dict[str, dict[str, float]]:
    """Rows and tokens of a step, means over the steps, by kind of row and for ALL together: base,
    distilled, reflect, retry. `nodes`: tokens of which those that rows share are counted once."""
    folder = RunFolder(run)
    config, steps = folder.settings_of(1), folder.history().steps
    sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    store = Store(folder.store, read_only=True)
    try:
        for step in steps:
            draw = trained_draw(store, step.step)
            kinds = supervised(draw)
            rows: dict[str, list[Row]] = defaultdict(list)
            for row in config.algorithm.rows(draw):
                rows[_kind(row, kinds)].append(row)
                rows[ALL].append(row)
            for kind, own in rows.items():
                size = len(plant([row.token_ids for row in own]).token_ids)
                for name, value in (
                    ("rows", len(own)),
                    ("tokens", sum(len(row.token_ids) for row in own)),
                    ("nodes", size),
                ):
                    sums[kind][name] += value / len(steps)
    finally:
        store.close()
    return {kind: {k: round(v, 1) for k, v in found.items()} for kind, found in sums.items()}


def supervised(batch: Batch) -> dict[bytes, str]:
    """Returns the kinds of the token sequences that supervised rows may have."""
    kinds = dict[bytes, str]()
    for group in batch.groups:
        kinds |= {thought.token_ids.tobytes(): "reflect" for thought in group.reflections}
        kinds |= {retry.as_shown()[0].tobytes(): "retry" for _, retry in group.retries}
    return kinds


def _kind(row: Row, kinds: dict[bytes, str]) -> str:
    if row.loss == IMITATION:  # a row is cut after its last trained token
        return next((k for ids, k in kinds.items() if ids.startswith(row.token_ids.tobytes())), "?")
    return "distilled" if row.distilled else "base"
