"""RLOO with R³'s in-context self-reflection, made of the same parts."""

import r3l
from r3l.algorithms.shared import self_reflection


class ReflectingRLOO(r3l.RLOO):
    below: float = 0.5

    def plan(self, lease) -> r3l.GroupPlan:
        return self_reflection.plan_reflecting(lease, self.group_size, self.below) or super().plan(
            lease
        )

    async def explore(self, x: r3l.Exploration) -> None:
        if x.plan.kind == self_reflection.REFLECTING:
            await self_reflection.explore(x)
        else:
            await super().explore(x)

    def rows(self, batch: r3l.Batch) -> list[r3l.Row]:
        return super().rows(batch.as_read(self_reflection.is_reflecting))
