"""The bound of staleness: when an actor may start a group, and when a group is too old to draw.

Symbols: V learner's version (optimizer steps done), B groups per step, η max_staleness,
I training groups ahead of the new one (leased, filling, complete, or drawn by the learner but not
committed), v the actor's policy version.

    grant  ⇔  V + I // B − v ≤ η

Why this bounds staleness. The learner draws whole batches of B groups. The groups ahead fill at
most I // B batches. Suppose that no later group overtakes the new one. Then the new group is in the
next batch, which is drawn at learner version V + I // B at most. The group's oldest token was
sampled by version v or newer. So its staleness is at most V + I // B − v ≤ η. If later groups are
drawn before it, its staleness can exceed η. Therefore each draw also expires groups that are too
old (`is_stale`). A group that another consumer drew is not ahead, because the learner does not
train on it. If the consumer returns it, the next draw checks its age. An inserted group has no age.

Why no actor starves. An actor at the learner's version (v = V) is refused only if I // B > η, that
is I ≥ B(η + 1) ≥ B. Then at least B groups are ahead, and each of them progresses. An actor
finishes an unfinished group. If its lease runs out, another actor finishes it. B complete groups
make a batch, which the learner draws. A drawn group is committed or released. A group that is too
old or lacks contrast expires. So I falls or V rises, whatever other consumers do. Groups without a
holder do not count in I: if they did, they could block their own takeover forever.

η = 0 is the synchronous algorithm: at most B groups in flight, all sampled by version V.
"""


def may_start(*, learner: int, ahead: int, per_step: int, max_staleness: int, actor: int) -> bool:
    """True if an actor at version `actor` may start a group under the staleness bound η."""
    return learner + ahead // per_step - actor <= max_staleness


def oldest_fresh(*, learner: int, limit: int) -> int:
    """Returns the oldest version that is not stale."""
    return learner - limit


def is_stale(oldest: int, *, learner: int, limit: int) -> bool:
    """True if a group's oldest version is more than `limit` versions behind the learner."""
    return oldest < oldest_fresh(learner=learner, limit=limit)
