"""R³L with another question, trigger, pivot, guidance, credit and amplification, and a further term
of the loss."""

import numpy as np

import r3l


class OwnQuestion(r3l.R3L):
    def question(self, base, prompts):
        return "You are a coach.", f"Which door went wrong?\n{base.actions}"

    def answer_schema(self, base):
        return None

    def read(self, text, complete, base):
        return r3l.Verdict(outcome="failure", pivot=1)

    def guidance_of(self, thought, base, prompts):
        return f"The coach says: {thought.text}"

    def triggers(self, thought, base):
        return thought.outcome == "failure"


class OwnTrigger(r3l.R3L):
    def triggers(self, thought, base):
        return super().triggers(thought, base) and base.reward < 0.5


class LastStepPivot(r3l.R3L):
    def pivot_of(self, thought, base):
        return base.num_steps - 1


class HalfCredit(r3l.R3L):
    """Trains every second response token."""

    def masks(self, attempts):
        found = super().masks(attempts)
        return [mask & (np.arange(len(mask)) % 2 == 0) for mask in found]


class Signs(r3l.R3L):
    """Advantages of ±1."""

    def amplified(self, rewards):
        return np.sign(rewards - rewards.mean())


class Fading(r3l.R3L):
    """Advantages that halve with each step after the pivot."""

    fade: float = 0.5

    def token_advantages(self, batch, found):
        from r3l.algorithms.credit import by_step

        return [
            [
                by_step(float(a) * self.fade ** np.maximum(np.arange(t.num_steps) - t.pivot, 0), t)
                for a, t in zip(values, batch.attempts(group), strict=True)
            ]
            for group, values in zip(batch.groups, found, strict=True)
        ]


class EntropyBonus(r3l.R3L):
    """A further term: the mean surprise of the policy's own tokens."""

    bonus: float = 0.01

    def loss(self, batch):
        own = batch.of("policy").masked()
        surprise = own.total(-own.logprobs_BT)
        batch.measure("surprise", surprise.detach())
        return super().loss(batch) | {"bonus": -self.bonus * surprise}
