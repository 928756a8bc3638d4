"""R³L that reflects only where no attempt succeeded, and else plays further attempts."""

import r3l


class HelpWhereAllFailed(r3l.R3L):
    async def explore(self, x: r3l.Exploration) -> None:
        retry_of = dict(self.pairs(x.plan.slots))
        await x.each(retry_of, lambda slot: x.play(slot, retried=True))
        played = [attempt for slot in retry_of if (attempt := x.attempt(slot))]
        if any(attempt.reward >= r3l.SUCCESS for attempt in played):
            await x.each(retry_of.values(), x.play)
        else:
            await x.each(
                retry_of,
                lambda slot: self.reflect_and_retry(x, slot, x.attempt(slot), retry_of[slot]),
            )
