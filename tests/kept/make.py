"""Makes the store and the checkpoint that a release keeps: `python -m tests.kept.make`.

Run it by hand, once, on the commit of a release that writes a schema number that no kept folder
has; commit what it writes. A folder that is there is never written again: if it could be made
anew after its release, it would show what today's code writes and not what users have.
"""

import gzip
import json
import sys
import tarfile
import tempfile
from collections import defaultdict
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace

from buffer import BufferClient
from buffer.storage import layout
from buffer.storage.store import Store
from buffer.storage.stored_rows import (
    ArchivePlace,
    DrawRow,
    GroupRow,
    ProgressLink,
    RecalledRow,
    Regrade,
    Regrades,
    RunPosition,
    TrainedAttempt,
)
from buffer.tools import store_reads
from learner import checkpoint
from learner.checkpoint import CHECKPOINTS, Checkpoints, RunState, load_run
from r3l import codec
from r3l.algorithms.guidance_gain import GroupGain
from r3l.models.model_folder import model_digest, read_tokenizer
from r3l.records import Extra, Group, GroupPlan, Record, Segment, Task
from r3l.records.imported import imported_attempt
from r3l.run.config import load
from r3l.views.tape import TapedCall, write_tape
from tests.buffer.fakes import Desk, Served, finished, thought
from tests.buffer.storage.full_store import SETTINGS, TASKS, fill, plain
from tests.kept import KEPT
from tests.kept.checkpoints import SETTINGS as OF_LEARNER
from tests.kept.checkpoints import next_step
from tests.kept.stores import contents, records
from tests.learner.fakes import recorded_group, tiny_model
from tests.r3l.training.fakes import rows_of

PLACE = ArchivePlace("a.parquet", 1, 2, "d")
ATTEMPT = finished(temperature=0.25, extra=Extra(scores={"judge": 0.5}))
MORE: list[Record] = [
    Group("g7", TASKS[0], GroupPlan(1), "trained", (ATTEMPT,), (thought(temperature=0.5),)),
    GroupRow("g7", "t0", 3, GroupPlan(1), "trained", archived=PLACE, priority=0.5, replaced=True),
    DrawRow(
        7,
        "r",
        "learner",
        2,
        ("g7",),
        "uniform",
        9.5,
        replaced=("g6",),
        recalled=(RecalledRow("g7", "g3", 1),),
    ),
    RunPosition(3, replaced=("g6",), gains=(GroupGain(0.5, 2),), closed=True),
    ProgressLink(b"data", "digest", "r", 2, 4),
    Regrades((Regrade("runs/demo", "workshop", "strict=true", 9.5, 8, 3, {"env": 1}),)),
]
"""What the kept store itself does not hold: of an archive, recall, priorities, a regrade."""


def main() -> None:
    """Make the folder of this release's version."""
    settings = ConfigParser()
    settings.read(KEPT.parent.parent / "setup.cfg")
    target = KEPT / settings["metadata"]["version"].rpartition(".")[0]
    if target.exists():
        sys.exit(f"{target}: is kept as its release wrote it, and never made again")
    with tempfile.TemporaryDirectory() as work:
        trained = make_store(Path(work))
        known = known_of(Path(work) / "kept")
        made = make_checkpoint(Path(work), trained)
        target.mkdir()
        data = (Path(work) / "kept" / "data.mdb").read_bytes()
        (target / "store.mdb.gz").write_bytes(gzip.compress(data, mtime=0))
        text = json.dumps(known, sort_keys=True).encode()
        (target / "store.json.gz").write_bytes(gzip.compress(text, mtime=0))
        with tarfile.open(target / "checkpoint.tar.gz", "w:gz") as packed:
            packed.add(Path(work) / CHECKPOINTS / "step-000002", "step-000002")
        (target / "checkpoint.json").write_text(json.dumps(made, indent=1) + "\n", "utf-8")
    for path in sorted(target.iterdir()):
        print(f"{path.stat().st_size:8,} {path}")


def make_store(work: Path) -> list[Group]:
    """A store with something in every table, in `work`/kept; the groups for the learner's step."""
    desk = Desk(work / "store", **SETTINGS)
    fill(desk)
    with desk.store.read() as txn:
        last = [codec.decode(DrawRow, data) for _, data in txn.scan("draw")][-1]
    used = [TrainedAttempt(g, g, 0, -0.5, 0, 0.25, True, 0.125) for g in last.groups]
    desk.commit(last.draw_id, 3, 3, tuple(used))
    trained = []
    for number in range(3):
        group = recorded_group(f"g{number}", version=3)
        slots = len(group.results)
        trained.append(desk.lease(version=3, plan=GroupPlan(slots)).group_id)
        desk.put(trained[-1], [*group.results, *group.reflections], fingerprint=(3, "hash-3"))
    gone = desk.lease(version=3).group_id
    desk.resolve(gone, 0, "env")
    desk.do(lambda work: work.evict(work.txn.row(gone)))  # older ones are there: it leaves a tomb
    desk.draw(2, 3)
    desk.store.close()
    _serve(work / "store")
    with Store(work / "store", read_only=True) as store:
        store.copy(work / "kept")
        return [store_reads.group(store, group_id) for group_id in trained]


def _serve(folder: Path) -> None:
    """A service keeps its replies in the store, such as those to whom attempts were inserted."""
    served = Served(folder, "tcp://127.0.0.1:0", "learner.groups_per_step=2")
    with BufferClient(served.endpoint, name="test", timeout_s=60) as client:
        client.add_tasks([Task("last", "workshop", 9)])
        asked = Task("outside", "elsewhere", 0, {"prompt": "what?"})
        client.insert(asked, _imported(), source="people", reflections=[thought()])
    assert served.stop() == 0


def _imported() -> list[Any]:
    """An attempt of an agent with two conversations and its tape, and a plain one."""
    beside = Segment(
        token_ids=np.arange(4, dtype=np.int32),
        logprobs=np.array([0, 0, -0.5, -0.25], np.float32),
        step_spans=np.array([[1, 2], [2, 4]], np.int32),
        step_versions=np.zeros(2, np.int32),
        step_newest_versions=np.zeros(2, np.int32),
        start=1,
        after=np.array([0, 1], np.int32),
    )
    asked = {"role": "user", "content": "what?"}
    call = TapedCall(
        "chat", "abc", -1, (asked,), {"content": "this"}, "stop", ("find",), 0.5, 0.25, 2, 1, 0,
        False, "gpt", "\n", "grammar", "so",
    )  # fmt: skip
    extra = Extra(
        reward_parts={"format": 0.5},
        step_rewards=np.array([0.5], np.float32),
        step_cut=np.array([True]),
        segments=(beside,),
        tape=write_tape([call, replace(call, parent=0, model="")]),
        scores={"judge": -0.25},
    )
    first = imported_attempt([1, 2, 3], [(1, 3)], 0.5, source="people", extra=extra)
    more = {"logprobs": [0.0, -0.5, -0.25], "actions": ["go"], "observations": ["where?", ""]}
    return [first, imported_attempt([1, 2, 3], [(1, 3)], 1.0, source="people", **more)]


def known_of(folder: Path) -> dict[str, Any]:
    """What this version reads in the store. Prints the fields that have their default in every
    record: those are frozen by name alone."""
    numbers = {"store": layout.SCHEMA, "records": codec.SCHEMA, "checkpoint": checkpoint.SCHEMA}
    more = [[type(each).__name__, codec.encode(each).hex(), plain(each)] for each in MORE]
    with Store(folder, read_only=True) as store:
        known = contents(store)
        held = [codec.decode(kind, data) for _, kind, data in records(store)]
    fields: dict[str, set[bool]] = defaultdict(set)
    for record in [*held, *MORE]:
        _tell_apart(record, fields)
    print(
        "at their default everywhere:", *sorted(f for f, seen in fields.items() if seen == {False})
    )
    return known | {"numbers": numbers, "more": json.loads(json.dumps(more))}


def _tell_apart(value: Any, fields: dict[str, set[bool]]) -> None:
    """Note for each field of a record, and of those in it, whether it differs from its default."""
    if isinstance(value, Record):
        for field in msgspec.structs.fields(value):
            one = getattr(value, field.name)
            default = field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            fields[f"{type(value).__name__}.{field.name}"].add(repr(one) != repr(default))
            _tell_apart(one, fields)
    elif isinstance(value, list | tuple):
        for one in value:
            _tell_apart(one, fields)


def make_checkpoint(work: Path, groups: list[Group]) -> dict[str, Any]:
    """A checkpoint of a tiny model after two steps, in `work`; its state and the step after it."""
    model = tiny_model(work / "model", hidden=8, head=4)
    config = load(None, OF_LEARNER)
    trainer, _ = load_run(None, model, config.learner, config.algorithm, config.seed)
    for _ in range(2):
        trainer.step(rows_of(groups, config.algorithm), config.algorithm.loss)
    ids = tuple(group.group_id for group in groups)
    state = RunState(2, ids, model_digest(model))
    checkpoints = Checkpoints(trainer, work / CHECKPOINTS, read_tokenizer(model, "model"), keep=1)
    checkpoints.save(state)
    assert checkpoints.finish()
    checkpoints.close()
    kept = work / CHECKPOINTS / "step-000002"
    return {
        "schema": checkpoint.SCHEMA,
        "state": {"version": 2, "groups": list(ids), "model_digest": state.model_digest},
        "next": next_step(kept, groups),
    }


if __name__ == "__main__":
    main()
