"""A kept store: its file, the records in it, and everything that its readers see."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from buffer.server.idempotency import KeptReplies
from buffer.storage.store import Store
from buffer.storage.stored_rows import (
    DrawRow,
    GroupRow,
    LedgerRow,
    ProgressLink,
    Regrades,
    RunPosition,
)
from buffer.tools import json_values, store_reads
from r3l import codec
from r3l.records import Group, Record, ReflectionRecord, SlotResult, Task
from r3l.views.tape import read_tape
from tests.buffer.storage import full_store
from tests.buffer.storage.full_store import plain
from tests.kept import KEPT

TABLES: dict[str, type[Record]] = {
    "task": Task,
    "state": GroupRow,
    "part": SlotResult,
    "partial": ProgressLink,
    "reflection": ReflectionRecord,
    "group": Group,
    "draw": DrawRow,
    "ledger": LedgerRow,
}
"""The tables of records. The others hold numbers and names."""
OF_RUN: dict[bytes, type[Record]] = {
    b"progress": RunPosition,
    b"replies": KeptReplies,
    b"regraded": Regrades,
}
"""The records of the table `sys`."""
KINDS = {kind.__name__: kind for kind in (*TABLES.values(), *OF_RUN.values())}


def unpack(version: str, folder: Path) -> dict[str, Any]:
    """Write the kept store into a folder; what is known of it."""
    folder.mkdir(parents=True)
    (folder / "data.mdb").write_bytes(
        gzip.decompress((KEPT / version / "store.mdb.gz").read_bytes())
    )
    known = gzip.decompress((KEPT / version / "store.json.gz").read_bytes())
    return dict(json.loads(known))


def contents(store: Store) -> dict[str, Any]:
    """Everything of a store that its readers see, as JSON values, bit by bit."""
    seen = full_store.contents(store)
    groups = [store_reads.group(store, row["group"]) for row in store_reads.rows(store)]
    attempts = [attempt for group in groups for attempt in group.trajectories]
    with store.read() as txn:
        seen |= {
            "rows": [plain(row) for row in txn.rows()],
            "tasks": [plain(codec.decode(Task, data)) for _, data in txn.scan("task")],
            "replies": plain(txn.read("sys", b"replies", KeptReplies)),
        }
    seen["tapes"] = [plain(read_tape(each.extra.tape)) for each in attempts if each.extra.tape]
    seen["exported"] = [json_values.plain(group) for group in groups]
    return dict(json.loads(json.dumps(seen)))


def records(store: Store) -> Iterator[tuple[str, type[Record], bytes]]:
    """Every record of a store: where it is, its class, and its bytes."""
    with store.read() as txn:
        for table, kind in TABLES.items():
            for key, data in txn.scan(table):
                yield f"{table} {key!r}", kind, bytes(data)
        for key, kind in OF_RUN.items():
            if data := txn.get("sys", key):
                yield f"sys {key!r}", kind, bytes(data)
