"""Is a store sound? Its file, every record, and all accounts kept beside them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from lmdb import verify as lmdb_verify

from buffer.storage import checksums, counts
from buffer.storage.layout import history_key, tag_prefix, u64
from buffer.storage.rows import DrawRow, Drop, GroupRow
from buffer.storage.store import Store
from buffer.storage.transaction import Txn, read_group
from r3l import codec
from r3l.errors import R3LError
from r3l.records import Task


def verify(store: Store) -> list[str]:
    """Everything that is wrong with a store, one line each."""
    trained: Counter[str] = Counter()
    figures: Counter[str] = Counter()
    drops: Counter[Drop] = Counter()
    live: list[str] = []
    with store.read() as txn:  # the view keeps the pages that are checked from being reused
        problems = [str(problem) for problem in lmdb_verify.verify(str(store.folder))]
        if problems:  # LMDB reads what it trusts: a page beyond the end would end this process
            return [*problems, "its records were not looked at, since the file itself is damaged"]
        for row in txn.rows():
            trained[row.group_id] -= len(row.steps)
            live += [] if row.closed else [row.group_id]
            figures.update(counts.added(None, row))
            drops.update(counts.dropped(row))
            problems += _group_problems(txn, row)
        problems += _ledger_problems(txn, trained)
        problems += _draw_problems(txn)
        problems += _list_problems(txn)
        problems += _account_problems(txn, figures, live)
        short = drops - Counter(dict(txn.drops()))
        problems += [
            f"drop {'/'.join(d)}: {n} more are there than written" for d, n in short.items()
        ]
    return problems


def _group_problems(txn: Txn, row: GroupRow) -> Iterator[str]:
    name = row.group_id
    try:
        data = txn.group_bytes(row)
        record = read_group(data, row)
        damage = list(checksums.damage(txn, row, data, record))
    except R3LError as error:
        yield f"{name}: {error}"
        return
    yield from (f"{name}: {problem}" for problem in damage)
    if row.state in ("complete", "drawn", "trained") and record.unresolved:
        yield f"{name}: {row.state} with unresolved slots"
    if not row.unfinished and txn.parts(name):
        yield f"{name}: {row.state} with parts left over"
    if txn.evicted(name):
        yield f"{name}: evicted, but still there"


def _ledger_problems(txn: Txn, trained: Counter[str]) -> Iterator[str]:
    """`trained`: minus the number of steps in which every group was, as its state says."""
    for _, data in txn.scan("ledger"):
        trained.update(txn.read_ledger(data).groups)
    for name, extra in trained.items():
        if extra and not (extra > 0 and txn.evicted(name)):
            yield f"{name}: in {extra:+d} more ledger lines than its state says"


def _draw_problems(txn: Txn) -> Iterator[str]:
    """Draws against the groups they name and the steps they were trained in, both ways."""
    open_draws: dict[int, tuple[str, ...]] = {}
    number = 0
    for number, (key, data) in enumerate(txn.scan("draw"), 1):
        drawn = codec.decode(DrawRow, data)
        name = f"draw {drawn.draw_id}"
        if key != u64(drawn.draw_id) or drawn.draw_id != number:
            yield f"draw {number}: missing, {name} is in its place"
            return
        if drawn.outcome == "open":
            open_draws[number] = drawn.groups
        for group_id in drawn.groups:
            if txn.get("state", group_id.encode()) is None and not txn.evicted(group_id):
                yield f"{name}: of group {group_id}, which never was"
        if drawn.outcome == "trained":
            step = txn.ledger(drawn.step)
            if step is None or (step.draw_id, step.groups) != (number, drawn.groups):
                yield f"{name}: trained in step {drawn.step}, but not by the ledger"
    for _, data in txn.scan("ledger"):
        step = txn.read_ledger(data)
        of = txn.draw(step.draw_id)
        if of is None or (of.outcome, of.step) != ("trained", step.step):
            yield f"step {step.step}: of draw {step.draw_id}, which does not say so"
    held = {(group, draw) for draw, groups in open_draws.items() for group in groups}
    drawn_now = {(e.group_id, e.draw_id) for e in txn.rows() if e.state == "drawn"}
    for group_id, draw_id in sorted(drawn_now - held):
        yield f"{group_id}: drawn by draw {draw_id}, which does not hold it"
    for group_id, draw_id in sorted(held - drawn_now):
        yield f"draw {draw_id}: holds {group_id}, which does not say so"


def _list_problems(txn: Txn) -> Iterator[str]:
    """Lists that follow from states and tasks: one line for what is missing, one for what is
    too much."""
    tags, history = set[bytes](), set[bytes]()
    wanted = Counter[bytes]()  # by list of tasks, how many there are at least
    for row in txn.rows():
        tags.add(tag_prefix(row.purpose, row.tag) + row.group_id.encode())
        if not row.unfinished:
            history.add(history_key(row.task_id, row.group_id))
        of = tag_prefix(row.purpose, row.tag)
        wanted[of] = max(wanted[of], row.task_index + 1)
    ids, tasks = set[tuple[bytes, bytes]](), Counter[bytes]()
    for key, data in txn.scan("task"):
        of, index = key[:-8], key[-8:]
        ids.add((of + codec.decode(Task, data).task_id.encode(), index))
        if index != u64(tasks[of]):
            yield f"task {key!r}: a task before it is missing"
        tasks[of] += 1
    for of, count in wanted.items():
        if tasks[of] < count:
            yield f"tasks of {of!r}: {tasks[of]} are there, a group is of number {count - 1}"
    yield from _differences("tag", tags, {key for key, _ in txn.scan("tag", values=False)})
    yield from _differences("history", history, {k for k, _ in txn.scan("history", values=False)})
    yield from _differences("task_id", ids, set(txn.scan("task_id")))


def _differences(table: str, expected: set[Any], found: set[Any]) -> Iterator[str]:
    for what, keys in (("missing", expected - found), ("too much", found - expected)):
        if keys:
            yield f"table {table}: {len(keys)} {what}, the first {min(keys)!r}"


def _account_problems(txn: Txn, figures: Counter[str], live: list[str]) -> Iterator[str]:
    """`figures`: what the groups that are there add up to."""
    kept, tombs = txn.counts(), txn.count("tomb")
    for name in sorted(figures.keys() | {n for n in kept if n.startswith("group/")}):
        there, written = figures[name], kept[name]
        lasting = not name.startswith(("group/", "bytes"))
        if written < there or (written > there and not lasting):
            yield f"count {name}: {written} is written, there are {there}"
    if kept["made"] != figures["made"] + tombs:
        both = f"{figures['made']} groups and {tombs} tombs"
        yield f"count made: {kept['made']} is written, there are {both}"
    if kept["draws"] != txn.count("draw"):
        yield f"count draws: {kept['draws']} is written, there are {txn.count('draw')}"
    if sum(counts.under(kept, "evicted").values()) != tombs:
        yield f"count evicted: not the {tombs} tombs there are"
    listed = [key.decode() for key, _ in txn.scan("live", values=False)]
    if listed != live:
        yield f"live groups: {len(listed)} are listed, {len(live)} there, or others"
    names = {row.group_id for row in txn.rows()}
    for table in ("group", "part"):
        for key, _ in txn.scan(table, values=False):
            if (name := key.split(b"\0")[0].decode()) not in names:
                yield f"{name}: in {table}, but it has no state"
