"""The bound of staleness: which groups actors may start, and which are too old to be drawn.

Pure functions, and the proof that they hold the bound and starve no actor.

Symbols: V learner's version (optimizer steps done), B groups per step, η max_staleness,
I training groups ahead of the new one (leased, filling, complete, or drawn by the learner but not
committed), v the actor's policy version.

    grant  ⇔  V + I // B − v ≤ η

Why this bounds staleness. The learner consumes whole batches of B groups, so before the new
group is drawn, at most I // B full batches are drawn from the groups ahead of it. If actors keep
pace (no group that starts later is drawn earlier), the new group is in the next batch, which is
drawn at learner version V + I // B. The group's oldest token was sampled by version v or newer, so
its staleness is then at most V + I // B − v ≤ η. If actors do not keep pace, staleness can exceed
this; the draw therefore expires groups beyond the bound (`is_stale`), so no new group is drawn at
an age above η, whatever the schedule. A group that another consumer drew is not ahead: the learner
does not train on it unless the consumer returns it, and then the draw checks its age too.

Why no actor starves. An actor at the learner's version (v = V) is refused only when I // B > η,
that is I ≥ B(η + 1) ≥ B. So an actor at version V is granted a group whenever fewer than B are in
flight. If B or more are in flight, all of them progress: B complete groups make a batch, which
the learner draws; a drawn group is committed or released; an unfinished group is finished by its
actor or, when its lease has run out, by another. (I leaves out groups without a holder: if counted,
they could block their own takeover forever.) Every path ends in a lower I or a higher V, and no
path depends on another consumer. A group that is too old, or lacks the contrast that the algorithm
needs, expires and leaves I at once; an actor is then granted its replacement.

η = 0 is the synchronous algorithm: at most B groups in flight, all sampled by version V.
"""


def admits(*, learner: int, ahead: int, per_step: int, max_staleness: int, actor: int) -> bool:
    """True if a group started now by an actor at version `actor` can be drawn within η."""
    return learner + ahead // per_step - actor <= max_staleness


def is_stale(oldest: int, *, learner: int, limit: int) -> bool:
    """True if `oldest`, a group's oldest version, is more than `limit` behind the learner's."""
    return learner - oldest > limit
