"""Sets the learner's version, and checks the policy versions that actors report."""

from collections.abc import Iterator

from msgspec.structs import replace

from buffer.groups import draw_deadlines
from buffer.groups.unit_of_work import UnitOfWork
from buffer.storage.layout import u64
from buffer.storage.stored_rows import DrawRow
from buffer.wire import operations
from buffer.wire.operations import Amount
from r3l.errors import SickResult
from r3l.rollout import engine_symptoms


def check_version(work: UnitOfWork, version: int) -> None:
    """Raises SickResult if an actor reports a policy version that no learner has made."""
    if symptom := engine_symptoms.of_versions([version], work.index.progress.newest_version):
        raise SickResult(symptom.message, cause=symptom.cause)


def set_version(work: UnitOfWork, args: operations.SetVersion) -> Amount:
    """Sets the version from which a learner starts. Deletes all later steps. A trained group is
    complete again if only deleted steps trained on it. Returns how many groups of the deleted steps
    are still stored."""
    draw_deadlines.extend(work, operations.LEARNER)
    rewound = set[str]()
    for step in list(work.txn.steps_after(args.version)):
        drawn = work.txn.draw(step.draw_id)
        if drawn is not None:
            rewound.update(_rewind(work, drawn))
            work.save_draw(replace(drawn, outcome="rewound"))
        work.txn.delete("ledger", u64(step.step))
    if rewound:
        work.count("rewound", len(rewound))
    newest = max(work.index.progress.newest_version, args.version)
    work.update_progress(version=args.version, newest=newest, has_learner=True)
    return Amount(len(rewound))


def _rewind(work: UnitOfWork, drawn: DrawRow) -> Iterator[str]:
    """Removes a draw's step from the rows of its groups. Yields the groups still stored."""
    for group_id in drawn.groups:
        row = work.find(group_id)
        if row is None:
            work.count("rewound_evicted")
            continue
        yield group_id
        steps = tuple(step for step in row.steps if step != drawn.step)
        state = row.state
        if state == "trained" and not steps and not row.source:  # an expired group stays expired
            state = "complete"
        draw_id = 0 if row.draw_id == drawn.draw_id else row.draw_id
        work.save(row.with_changes(state=state, steps=steps, draw_id=draw_id), "set_version")
