"""Stores and checkpoints that released versions wrote, and tests that this version reads them.

    tests/kept/0.1/store.mdb.gz       a store's file (stores.py)
                   store.json.gz      what 0.1 read in it
                   checkpoint.tar.gz  a checkpoint of a tiny model (checkpoints.py)
                   checkpoint.json    what 0.1 made of it in one step

`python -m tests.kept.make` made them. What to do when a schema changes: CONTRIBUTING.md.
"""

from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent
VERSIONS = sorted(path.parent.name for path in KEPT.glob("*/store.json.gz"))


def lacks(now: Any, kept: Any, at: str = "") -> list[str]:
    """Where a value of today differs from a kept one. A record may have got fields since."""
    if isinstance(kept, dict) and isinstance(now, dict):
        gone = [f"{at}.{name}: gone" for name in kept.keys() - now.keys()]
        both = kept.keys() & now.keys()
        return gone + [
            line for name in both for line in lacks(now[name], kept[name], f"{at}.{name}")
        ]
    if isinstance(kept, list) and isinstance(now, list) and len(kept) == len(now):
        pairs = enumerate(zip(now, kept, strict=True))
        return [line for number, pair in pairs for line in lacks(*pair, f"{at}[{number}]")]
    return [] if now == kept else [f"{at}: {now!r:.80}, was {kept!r:.80}"]
