"""The bound of staleness: which groups actors may start, and which are too old to be drawn.

Pure functions, and the proof that they hold the bound and starve no actor.

Symbols: V learner's version (optimizer steps done), B groups per step, η max_staleness,
I train groups ahead of the new one (leased, filling, complete, drawn by the learner and not
committed), v the actor's policy version.

    grant  ⇔  V + I // B − v ≤ η

Why this bounds staleness. The learner consumes whole batches of B groups, so before the new
group is drawn at most I // B full batches are drawn from those ahead of it. If actors keep pace
(no group that starts later is drawn before it), it is in the batch after those, drawn while the
learner is at version V + I // B. Its oldest token was sampled by version v or newer, so its
staleness then is at most V + I // B − v ≤ η. If actors do not keep pace the estimate can be
exceeded; the draw therefore drops what breaks the bound (`is_stale`), so no drawn group is ever
older than η, whatever the schedule. A group that another consumer drew is not ahead: the learner
does not train on it unless it is given back, and then the draw checks it too.

Why no actor starves. An actor at the learner's version (v = V) is refused only when I // B > η,
that is I ≥ B(η + 1) ≥ B. So whenever fewer than B groups are in flight an actor at version V is
granted one. While at least B are in flight each is either complete (B of them make a batch, the
learner draws), or drawn by the learner (a commit or release follows), or unfinished (its actor
finishes it, or its lease runs out and another takes it over; groups without a holder are not ahead
of a takeover, or enough of them could block it forever). Every path lowers
I or raises V, and none depends on another consumer. A group that can no longer be drawn is expired
and leaves I at once; so does one without contrast if the algorithm needs it, and then an actor is
granted the one that replaces it.

η = 0 is the synchronous algorithm: at most B groups in flight, all sampled by version V.
"""

from __future__ import annotations


def admits(*, learner: int, ahead: int, per_step: int, max_staleness: int, actor: int) -> bool:
    """True if a group started now by an actor at version `actor` can be drawn within η."""
    return learner + ahead // per_step - actor <= max_staleness


def is_stale(oldest: int, *, learner: int, limit: int) -> bool:
    """True if a group whose oldest token is of version `oldest` is more than `limit` steps old."""
    return learner - oldest > limit
