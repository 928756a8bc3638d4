"""The runs: what is set for each, and which alarms it must raise."""

from dataclasses import dataclass

HERE = "lab/alarms"
SMALL = (
    "model=r3l/models/policies/tiny",
    "learner.groups_per_step=8", "algorithm.group_size=8", "actor.concurrent_requests=64",
    "eval.tasks=0", "eval.every=0", "learner.warmup_steps=0",
)  # fmt: skip
LUCK = f"env={HERE}/luck.py:Luck"
EVEN = (LUCK, "env.options.wins=0.5")
BREAKS = ("learner.lr=0.3", "learner.grad_clip=1000")
SHORT = ("env=workshop", "env.options.stations=2")  # a quarter of the first attempts succeed
RUNS = 10  # of each alarm, the seeds 0 to 9


@dataclass(frozen=True)
class Case:
    """A kind of run. `settings`: over SMALL. `raises`: the alarms that it must raise; () if it is a
    good run, which must raise none. `seeds`: how many runs."""

    name: str
    steps: int
    settings: tuple[str, ...]
    raises: tuple[str, ...] = ()
    seeds: int = RUNS

    def arguments(self, run: str, seed: int) -> list[str]:
        """The words of r3l-launch for one run."""
        budget = (f"learner.steps={self.steps}", f"seed={seed}")
        return ["--run", run, "--actors", "1", *SMALL, *budget, *self.settings]


BAD = (
    Case("context", 4, ("algorithm=grpo", "actor.max_model_len=64"), ("cut attempts",)),
    Case("responses", 4, ("algorithm=grpo", "actor.max_response_tokens=1"), ("cut responses",)),
    Case(
        "hopeless", 7, (LUCK, "env.options.answered=false", "algorithm.group_size=16"),
        ("no answers", "no success", "useless retries"),
    ),
    Case(
        "ends", 15, ("algorithm=grpo", *EVEN, "env.options.until=128"),
        ("success lost", "no contrast"),
    ),
    Case(
        "falls", 22, ("algorithm=grpo", LUCK, "env.options.wins=0.9", "env.options.until=640"),
        ("reward fell",),
    ),
    Case("solved", 4, ("algorithm=grpo", LUCK, "env.options.wins=1.0"), ("solved",)),
    Case(
        "reflections", 4,
        ("actor.max_reflection_tokens=22", "algorithm.constrained_reflection=false"),
        ("unread reflections",),
    ),
    # The first token of every answer is `use`: at this temperature its entropy is 1e-12 nats.
    Case(
        "flat", 5,
        ("algorithm=grpo", *EVEN, "actor.temperature=0.1", "actor.max_response_tokens=1"),
        ("no entropy",),
    ),
    Case(
        "sinks", 16, (f"algorithm={HERE}/entropies.py:Conform", *EVEN, "learner.lr=5e-4"),
        ("entropy sinks",),
    ),
    Case(
        "grows", 18, (f"algorithm={HERE}/entropies.py:Differ", *EVEN, "learner.lr=3e-3"),
        ("entropy grows",),
    ),
    Case(
        "breaks", 7, ("algorithm=grpo", "algorithm.kl_coef=1e-4", *EVEN, *BREAKS),
        ("far from the sampler", "far from the reference"),
    ),
    Case(
        "worse", 7,
        ("algorithm=grpo", LUCK, "env.options.wins=0.7", "env.options.form=true", *BREAKS,
         "eval.tasks=100"),
        ("worse evaluation",),
    ),
    Case("rounding", 5, ("algorithm=grpo", *EVEN, "learner.lr=1e-12"), ("no change",)),
    Case(
        "tools", 2,
        ("algorithm=grpo", "env=agent", f"env.options.command={HERE}/tool_agent.py:play",
         "env.options.tasks=examples/agents/workshop.jsonl", "actor.max_model_len=2048",
         "actor.max_response_tokens=16"),
        ("unused tools",),
    ),
)  # fmt: skip

GOOD = (
    Case("rare, with retries", 10, ("algorithm=r3l", "eval.tasks=40"), seeds=4),
    Case("rare, without", 8, ("algorithm=grpo", "env=workshop"), seeds=3),  # 512 attempts
    Case("grpo", 12, ("algorithm=grpo", *SHORT, "eval.tasks=40"), seeds=4),
    Case("dapo", 8, ("algorithm=dapo", *SHORT), seeds=3),
    Case("rloo", 8, ("algorithm=rloo", *SHORT), seeds=3),
    Case(
        "agent", 6,
        ("algorithm=grpo", "env=agent",
         "env.options.command=examples/agents/workshop_agent.py:play",
         "env.options.tasks=examples/agents/workshop.jsonl"),
        seeds=3,
    ),
)  # fmt: skip
CASES = {case.name: case for case in (*BAD, *GOOD)}

SAYS = {
    "cut attempts": ("attempts are cut off by the context", "more than a third of the newest 256"),
    "cut responses": (
        "responses are cut off at their limit",
        "more than a third, those of the first evaluation included",
    ),
    "no answers": ("no response has the asked form", "at most 5 % of the newest attempts"),
    "no success": (
        "no success, with the mean reward and the groups without contrast",
        "600 attempts without one, if the mean reward has not risen; before that a note",
    ),
    "success lost": (
        "no success any more",
        "600 attempts without one, which the rate before makes less likely than 1 %",
    ),
    "no contrast": ("the rewards of every group are equal", "for 600 attempts"),
    "solved": (
        "the tasks are solved already",
        "95 % of the first attempts succeed; a note if the run solved them itself",
    ),
    "unread reflections": ("reflections cannot be read", "more than 80 % of the newest"),
    "useless retries": (
        "no retry is better than its base attempt",
        "for 150 retries; without any success from 600 attempts on",
    ),
    "reward fell": (
        "the mean reward fell from its best",
        "by a fifth and six standard errors, ten blocks of 64 attempts against the best ten; a "
        "note if the newest evaluation is the best",
    ),
    "no entropy": (
        "the policy always says the same",
        "below 0.01 nats a token, unless 90 % succeed; a note if the reward has risen",
    ),
    "entropy sinks": ("the entropy sinks", "below a fifth, if the mean reward has not risen"),
    "entropy grows": (
        "the entropy grows",
        "above twice its value and half a nat, if the mean reward has not risen",
    ),
    "far from the sampler": (
        "the policy is far from the one that sampled",
        "effective sample size below 0.3 or KL above 1, median of five steps",
    ),
    "far from the reference": (
        "the policy is far from the reference model",
        "KL above 10 nats a token, median of five steps",
    ),
    "no change": ("updates are lost in rounding", "a step changes less than 0.1 % of the weights"),
    "worse evaluation": (
        "an evaluation is worse, with the interval",
        "the interval of its difference from the first or the best is below 0; it grows with the "
        "number of evaluations",
    ),
    "unused tools": (
        "agents offer tools, and no reply calls one",
        "for 64 calls or more; a note if 90 % succeed or the reward rises",
    ),
}
"""What each alarm says, and when."""
