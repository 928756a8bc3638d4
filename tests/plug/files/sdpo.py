"""SDPO: the policy that has read the advice scores the attempt that it has made.

A_t = log π_teacher(y_t | x, advice) − log π(y_t | x), of an averaged teacher; loss −A_t log π
"""

import numpy as np

import r3l
from r3l.algorithms import rows


class SDPO(r3l.R3L):
    average_decay: float = 0.99

    @property
    def needs(self) -> tuple:
        return (*super().needs, "averaged")

    async def explore(self, x: r3l.Exploration) -> None:
        prompts = await x.prompts()

        async def play(slot: int) -> None:
            if (base := await x.play(slot)) is not None:
                await x.ask(f"advice-{slot}", self.question(base, prompts), of=slot)

        await x.each(range(x.plan.slots), play)

    def queries(self, batch: r3l.Batch) -> list[r3l.Query]:
        found = []
        for group, attempt, advice in self.advised(batch):
            ids, mask = batch.advised(attempt, advice)
            heat, key = attempt.temperature or 1.0, (group.group_id, attempt.slot)
            found += [
                r3l.Query(("teacher", *key), ids, mask, weights="averaged", temperature=heat),
                r3l.Query(
                    ("own", *key), attempt.token_ids, attempt.response_mask, temperature=heat
                ),
            ]
        return found

    def rows(self, batch: r3l.Batch) -> list[r3l.Row]:
        found = self.advantages(batch)
        by_token = [[np.zeros(len(t.token_ids)) for t in batch.attempts(g)] for g in batch.groups]
        places = {g.group_id: n for n, g in enumerate(batch.groups)}
        for group, attempt, _ in self.advised(batch):
            key = (group.group_id, attempt.slot)
            teacher, own = batch.answers[("teacher", *key)], batch.answers[("own", *key)]
            start = int(attempt.step_spans[0, 0])
            gap = np.zeros(len(attempt.token_ids))
            gap[start:] = teacher[len(teacher) - len(own) + start :] - own[start:]
            slots = [t.slot for t in batch.attempts(group)]
            by_token[places[group.group_id]][slots.index(attempt.slot)] = gap
        counted = rows.policy(batch, found, self.credit_masks(batch), self.normalize, by_token)
        return rows.with_gradient(rows.weigh(counted, self.normalize))

    @staticmethod
    def advised(batch: r3l.Batch) -> list:
        return [
            (group, attempt, thought.text)
            for group in batch.groups
            for attempt in group.trajectories
            for thought in group.reflections
            if thought.of == attempt.slot
        ]
