"""R³'s three parts: recall, a group that begins with a stored failure, ranking by entropies."""

import numpy as np

import r3l

REFLECT = "Here is a failed attempt at this task. Say first what went wrong, then do better.\n{log}"


class R3Whole(r3l.R3):
    reflect_below: float = 0.5
    peak_share: float = 0.2
    most: float = 0.5

    def plan(self, lease) -> r3l.GroupPlan:
        stored = list(lease.history)
        failures = [attempt for attempt in stored if not attempt.success]
        mean = np.mean([attempt.reward for attempt in stored]) if stored else 1.0
        if lease.epoch == 0 or mean >= self.reflect_below or not failures:
            return r3l.GroupPlan(self.group_size)
        chosen = failures[int(lease.random().integers(len(failures)))]
        return r3l.GroupPlan(
            self.group_size, "reflect", (r3l.AttemptKey(chosen.group_id, chosen.slot),)
        )

    async def explore(self, x: r3l.Exploration) -> None:
        if x.plan.kind != "reflect" or not x.handed:
            await super().explore(x)
            return
        failed = x.handed[0].trajectory
        log = "\n".join(
            f"{o} -> {a}" for o, a in zip(failed.observations[:-1], failed.actions, strict=True)
        )
        await x.each(
            range(x.plan.slots), lambda slot: x.play(slot, context=REFLECT.format(log=log))
        )

    def queries(self, batch: r3l.Batch) -> list[r3l.Query]:
        found = list(super().queries(batch))
        for group in batch.groups:
            for attempt in self.truncated(group):
                found.append(
                    r3l.Query(
                        ("entropy", group.group_id, attempt.slot),
                        attempt.token_ids,
                        attempt.response_mask,
                        find="entropy",
                        temperature=attempt.temperature or 1.0,
                    )
                )
        return found

    def advantages(self, batch: r3l.Batch) -> list:
        found = super().advantages(batch)
        for number, group in enumerate(batch.groups):
            ranked = self.truncated(group)
            entropies = [batch.answers.get(("entropy", group.group_id, t.slot)) for t in ranked]
            if not ranked or any(entropy is None for entropy in entropies):
                continue
            masked = [e[t.response_mask] for e, t in zip(entropies, ranked, strict=True)]
            bonus = dict(zip([t.slot for t in ranked], self.ranking(masked), strict=True))
            attempts = batch.attempts(group)
            own = len(attempts) - batch.recalls(group)
            rewards = np.array(
                [
                    t.reward + (bonus.get(t.slot, 0.0) if i < own else 0.0)
                    for i, t in enumerate(attempts)
                ]
            )
            found[number] = self.weigh(rewards, attempts, batch.recalls(group))
        return found

    @staticmethod
    def truncated(group: r3l.Group) -> list[r3l.Trajectory]:
        if any(attempt.reward >= r3l.SUCCESS for attempt in group.trajectories):
            return []
        return [
            t
            for t in group.trajectories
            if t.finish == "context_overflow" or t.extra.step_cut.any()
        ]

    def ranking(self, entropies: list) -> list[float]:
        peaks = [np.sort(h)[-max(1, int(self.peak_share * len(h))) :].mean() for h in entropies]
        means = [h.mean() for h in entropies]
        n = len(entropies)
        score = [
            sum(peaks[i] > peaks[j] and means[i] < means[j] for j in range(n)) for i in range(n)
        ]
        order = sorted(range(n), key=lambda i: -score[i])
        rank = {i: k for k, i in enumerate(order, 1)}
        return [self.most * (1 - rank[i] / (n - 1)) if n > 1 else 0.0 for i in range(n)]
