"""A program: flip single bits of a store's file, and say what opening and `verify` make of each.

    python flips.py STORE WORK NUMBER SEED

Prints JSON: how many flips were refused at opening, named by verify, or harmless (nothing that the
store holds has changed), and `unseen`, where (byte, bit) something changed and nothing was said.
A traceback, or the end of the process, is a failure of its own.
"""

import json
import random
import shutil
import sys
from collections import Counter
from pathlib import Path

from buffer.storage.layout import TABLES
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l.errors import R3LError


def content(store: Store) -> dict[str, list[tuple[bytes, bytes]]]:
    """Every key and value, as they are in the file."""
    with store.read() as txn:
        return {name: list(txn._raw.cursor(db)) for name, db in txn._tables.items()}


def look(folder: Path, sound: dict[str, list[tuple[bytes, bytes]]]) -> str:
    """What is said of a store whose file may be damaged."""
    try:
        store = Store(folder, read_only=True)
    except R3LError:
        return "refused"
    try:
        if verify(store):
            return "named"
        return "harmless" if content(store) == sound else "unseen"
    finally:
        store.close()


def main(source: Path, work: Path, number: int, seed: int) -> None:
    store = Store(source, read_only=True)
    sound, data = content(store), (source / "data.mdb").read_bytes()
    store.close()
    assert sound.keys() == set(TABLES)
    chance, said, unseen = random.Random(seed), Counter[str](), []
    for _ in range(number):
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        flipped = bytearray(data)
        flipped[at] ^= 1 << bit
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        (work / "data.mdb").write_bytes(flipped)
        outcome = look(work, sound)
        said[outcome] += 1
        unseen += [(at, bit)] if outcome == "unseen" else []
    print(json.dumps(dict(said) | {"unseen": unseen}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
