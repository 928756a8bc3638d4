"""Checks a whole store: its file, all records, and the counts and lists derived from them."""

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from lmdb import verify as lmdb_verify

from buffer.groups import progress
from buffer.groups.states import broken_rule
from buffer.storage import counts, result_checksums
from buffer.storage.layout import history_key, listed_prefix, tag_prefix, u64
from buffer.storage.store import Store
from buffer.storage.stored_rows import DrawRow, GroupRow
from buffer.storage.transaction import Txn, read_group
from r3l import codec
from r3l.errors import R3LError
from r3l.records import Task

RECORDS = ("table group,", "table part,", "table partial,", "table reflection,")
"""Beginnings of messages about damaged records and results. The rows can still be checked."""


def verify(
    store: Store, told: Callable[[int, int], object] = lambda done, total: None
) -> list[str]:
    """Describes each problem of a store in one line. Reads the whole store. After each group, calls
    `told` with the number of groups checked so far and the number of all groups."""
    with store.read() as txn:  # the view keeps the pages that are checked from being reused
        problems = [str(problem) for problem in lmdb_verify.verify(str(store.folder))]
        if problems:  # LMDB trusts its pages: reading one beyond the end kills a process
            return [*problems, "records not checked: the file itself is damaged"]
        problems = list(txn.damaged())
        if any(not problem.startswith(RECORDS) for problem in problems):
            return [*problems, "records not checked: their rows are damaged"]
        total = txn.size("state")
        for done, row in enumerate(txn.rows(), 1):
            problems += _group_problems(txn, row)
            told(done, total)
        for check in (_ledger_problems, _draw_problems, _list_problems, _count_problems):
            problems += check(txn)
    return problems


def _group_problems(txn: Txn, row: GroupRow) -> Iterator[str]:
    name = row.group_id
    try:
        data = txn.group_bytes(row)
        record = read_group(data, row)
        damage = list(result_checksums.damage(txn, row, data, record))
    except R3LError as error:
        yield f"{name}: {error}"
        return
    yield from (f"{name}: {problem}" for problem in damage)
    if rule := broken_rule(row):
        yield f"{name}: {rule}"
    if row.unfinished and txn.get("group", name.encode()) is not None:
        yield f"{name}: is {row.state}, but has a finished record"
    still_open = set(range(row.slots)) - set(row.resolved_slots)
    for slot in progress.slots_with_progress(txn, name):
        if slot not in still_open:
            yield f"{name}: has progress of a slot that is not open"
        elif progress.newest(txn, name, slot)[0] < len(progress.keys_of(txn, name, slot)):
            yield f"{name}: the progress of slot {slot} does not fit its digest"
    if txn.evicted(name):
        yield f"{name}: was evicted, but is still stored"


def _ledger_problems(txn: Txn) -> Iterator[str]:
    """Compares the ledger's steps with the steps in the group rows."""
    extra = Counter[str]()
    for row in txn.rows():
        extra[row.group_id] -= len(row.steps)
    for step in txn.steps():
        extra.update(step.groups)
    for name, number in extra.items():
        if number and not (number > 0 and txn.evicted(name)):
            yield f"{name}: number of steps differs (ledger minus row: {number:+d})"


def _draw_problems(txn: Txn) -> Iterator[str]:
    """Compares each draw with its groups and its ledger step, in both directions."""
    open_draws: dict[int, tuple[str, ...]] = {}
    number, pruned = 0, txn.counts()["draws_pruned"]
    for number, (key, data) in enumerate(txn.scan("draw"), 1):
        drawn = codec.decode(DrawRow, data)
        name = f"draw {drawn.draw_id}"
        if key != u64(drawn.draw_id) or not number <= drawn.draw_id <= number + pruned:
            yield f"draw {number}: missing, {name} is in its place"
            return
        if drawn.outcome == "open":
            open_draws[drawn.draw_id] = drawn.groups
        if not {recalled.into for recalled in drawn.recalled} <= set(drawn.groups):
            yield f"{name}: recalls attempts into groups that it did not draw"
        for group_id in (*drawn.groups, *drawn.replaced, *(r.group_id for r in drawn.recalled)):
            if txn.get("state", group_id.encode()) is None and not txn.evicted(group_id):
                yield f"{name}: names group {group_id}, which was never made"
        if drawn.outcome == "trained":
            step = txn.step(drawn.step)
            if step is None or (step.draw_id, step.groups) != (drawn.draw_id, drawn.groups):
                yield f"{name}: trained in step {drawn.step}, which the ledger lacks or contradicts"
    for step in txn.steps():
        source = txn.draw(step.draw_id)
        if source is None or (source.outcome, source.step) != ("trained", step.step):
            yield f"step {step.step}: names draw {step.draw_id}, which was not trained in this step"
    held = {(group, draw) for draw, groups in open_draws.items() for group in groups}
    drawn_now = {(row.group_id, row.draw_id) for row in txn.rows() if row.state == "drawn"}
    for group_id, draw_id in sorted(drawn_now - held):
        yield f"{group_id}: drawn by draw {draw_id}, which does not hold it"
    for group_id, draw_id in sorted(held - drawn_now):
        yield f"draw {draw_id}: holds {group_id}, which is not drawn by this draw"


def _list_problems(txn: Txn) -> Iterator[str]:
    """Finds missing and extra entries in the lists derived from rows and tasks."""
    tags, history, listed = set[bytes](), set[bytes](), set[bytes]()
    least = Counter[bytes]()  # tasks that a list has at least
    for row in txn.rows():
        key, prefix = row.group_id.encode(), tag_prefix(row.purpose, row.tag)
        tags.add(prefix + key)
        least[prefix] = max(least[prefix], row.task_index + 1)
        listed.add(listed_prefix(row.purpose, row.state) + key)
        if not row.unfinished:
            history.add(history_key(row.task_id, row.group_id))
    ids, tasks = set[tuple[bytes, bytes]](), Counter[bytes]()
    for key, data in txn.scan("task"):
        prefix, index = key[:-8], key[-8:]
        ids.add((prefix + codec.decode(Task, data).task_id.encode(), index))
        if index != u64(tasks[prefix]):
            yield f"task {key!r}: a task before it is missing"
        tasks[prefix] += 1
    for prefix, count in least.items():
        if tasks[prefix] < count:
            yield f"tasks of {prefix!r}: {tasks[prefix]}, but a group has task index {count - 1}"
    yield from _differences("tag", tags, set(txn.keys("tag")))
    yield from _differences("history", history, set(txn.keys("history")))
    yield from _differences("listed", listed, set(txn.keys("listed")))
    yield from _differences("task_id", ids, set(txn.scan("task_id")))


def _differences(table: str, expected: set[Any], found: set[Any]) -> Iterator[str]:
    for what, keys in (("missing", expected - found), ("too many", found - expected)):
        if keys:
            yield f"table {table}: {len(keys)} {what}, the first {min(keys)!r}"


def _count_problems(txn: Txn) -> Iterator[str]:
    """Compares counts with the sums over all group rows."""
    added, names = Counter[str](), set[str]()
    for row in txn.rows():
        names.add(row.group_id)
        added.update(counts.added(None, row))
    written, tombs = txn.counts(), txn.size("tomb")
    for name in sorted(added.keys() | {n for n in written if n.startswith("group/")}):
        lasting = not name.startswith(("group/", "bytes", "inserted/untrained"))
        if written[name] < added[name] or (written[name] > added[name] and not lasting):
            yield f"count {name}: {written[name]}, but the groups add up to {added[name]}"
    evicted = sum(counts.under(written, "evicted").values())
    if written["made"] != added["made"] + evicted:
        yield (
            f"count made: {written['made']}, but there are {added['made']} groups and {evicted} "
            "were evicted"
        )
    draws, pruned = txn.size("draw"), written["draws_pruned"]
    if written["draws"] != draws + pruned:
        yield f"count draws: {written['draws']}, but there are {draws} and {pruned} were removed"
    if tombs > evicted or (tombs < evicted and txn.get("sys", b"evicted") is None):
        yield f"count evicted: {evicted}, but there are {tombs} tombs"
    for table in ("group", "part", "partial", "reflection"):
        for key in txn.keys(table):
            if (name := key.split(b"\0")[0].decode(errors="backslashreplace")) not in names:
                yield f"{name}: is in table {table}, but has no row"
