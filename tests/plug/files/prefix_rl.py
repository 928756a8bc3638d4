"""PrefixRL: half of the attempts start inside a stored success of the task."""

import r3l


class PrefixRL(r3l.GRPO):
    def plan(self, lease) -> r3l.GroupPlan:
        best = next((attempt for attempt in lease.history if attempt.success), None)
        if best is None:
            return r3l.GroupPlan(self.group_size)
        return r3l.GroupPlan(self.group_size, "prefix", (r3l.AttemptKey(best.group_id, best.slot),))

    async def explore(self, x: r3l.Exploration) -> None:
        if not x.handed:
            await super().explore(x)
            return
        key, success = x.plan.handed[0], x.handed[0].trajectory
        steps = x.random.integers(success.num_steps, size=x.plan.slots)

        async def play(slot: int) -> None:
            step = int(steps[slot])
            start = r3l.Origin(key.group_id, key.slot, step) if slot % 2 and step else None
            await x.play(slot, start=start)

        await x.each(range(x.plan.slots), play)
