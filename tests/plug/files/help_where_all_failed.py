"""R³L that reflects only where no attempt succeeded, and else plays further attempts."""

import r3l


class HelpWhereAllFailed(r3l.R3L):
    async def explore(self, x: r3l.Exploration) -> None:
        retries = self.retries(x.plan.slots)
        await x.each(retries, lambda slot: x.play(slot, retried=True))
        played = [attempt for slot in retries if (attempt := x.attempt(slot))]
        if any(attempt.reward >= r3l.SUCCESS for attempt in played):
            await x.each([slot for again in retries.values() for slot in again], x.play)
        else:
            await x.each(
                retries,
                lambda slot: self.reflect_and_retry(x, slot, x.attempt(slot), retries[slot]),
            )
