"""R³L with two retries of each failure: one from the pivot, one from half of it."""

import r3l


class TwoPivots(r3l.R3L):
    def pairs(self, slots: int) -> list[tuple[int, int]]:
        bases = slots // 3
        return [(slot, bases + 2 * slot) for slot in range(bases)]

    def plan(self, lease) -> r3l.GroupPlan:
        return r3l.GroupPlan(3 * (self.group_size // 2))

    async def reflect_and_retry(self, x, slot, base, retry) -> None:
        await super().reflect_and_retry(x, slot, base, retry)
        first = x.attempt(retry)
        if first is None:
            await x.skip(retry + 1, "no_first_retry", of=slot)
        else:
            guidance = self.guidance_of(x.reflections[first.reflection], base, await x.prompts())
            await x.retry(
                retry + 1,
                of=slot,
                pivot=first.pivot // 2,
                guidance=guidance,
                reflection=first.reflection,
            )
