"""R³L with two retries of each failure: one from the pivot, one from half of it."""

import r3l


class TwoPivots(r3l.R3L):
    def plan(self, lease) -> r3l.GroupPlan:
        return r3l.GroupPlan(3 * (self.group_size // 2))

    def retries(self, slots):
        bases = slots // 3
        return {slot: [bases + 2 * slot, bases + 2 * slot + 1] for slot in range(bases)}

    def pivots_of(self, thought, base, count):
        pivot = self.pivot_of(thought, base)
        return [pivot, pivot // 2]
