"""Worlds in which SmolLM2 rarely succeeds, and the rule by which a warm policy counts.

smollm2 ─► warm-up of the first length ─► probe ─┬─ counts ─► runs
                                                 └─ else the next length

If a world has limits of success, a probe begins with plain attempts, and ends with them if their
success is outside the limits.
"""

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from lab.quality import first_success, measure
from lab.real_model.doses import warm_up
from lab.results.lines import append, read_lines
from launch.evaluation.play import own_engine
from r3l.errors import UserError
from r3l.run import config as configuration
from r3l.run.config import RunConfig

ANY = (0.0, 1.0)
Options = Mapping[str, Any]
Named = dict[str, Any]


@dataclass(frozen=True)
class World:
    """A world. `taught`: options of its warm-up, `trained`: those of its runs, the first of which
    counts by its probe. `withheld`: rules that the warm-up does not teach. `lengths`: steps of the
    warm-up, the next one if no option counts. `least`: what is asked of a probe; `success`: limits
    of its base success. `strict`: whether there are no runs if nothing counts; else the last probe
    counts. `tasks`: held-out tasks of a probe. `controls`: further variants, made only if they are
    named. `changed`: options that make it another world, in which nothing was trained; None: there
    are none. `graded`: whether failures differ in reward, so that groups without a success teach,
    too. `like`: another world, whose warm policies it has; "": it has its own."""

    name: str
    env: str
    settings: Path
    variants: tuple[str, ...]
    taught: Options
    trained: tuple[Options, ...]
    least: Mapping[str, float]
    withheld: int = 0
    lengths: tuple[int, ...] = (200, 400)
    success: tuple[float, float] = ANY
    strict: bool = False
    tasks: int = 200
    warm_words: tuple[str, ...] = ("--tokens-per-batch", "4096", "--lr", "5e-5")
    controls: tuple[str, ...] = ()
    changed: Options | None = None
    graded: bool = False
    like: str = ""

    def warmup(self, steps: int, seed: int) -> list[str]:
        """The arguments of its warm-up."""
        dials = [
            part for name, value in self.taught.items() for part in ("--set", f"{name}={value}")
        ]
        withheld = ["--withheld", str(self.withheld)] if self.withheld else []
        return ["--model", "smollm2", "--env", self.env, *dials, *withheld,
                "--steps", str(steps), *self.warm_words, "--seed", str(seed)]  # fmt: skip

    def counts(self, probe: Mapping[str, Any]) -> bool:
        """Whether a warm policy counts, by its probe."""
        if not self.within(probe["success"]):
            return False
        reached = {**probe, "gain": probe["guided"] - probe["restart"]}
        return all(reached[name] >= share for name, share in self.least.items())

    def within(self, success: float) -> bool:
        """Whether a base success is within the world's limits."""
        low, high = self.success
        return low <= success <= high


HERE = Path(__file__).parent
ARMS = ("r3l", "no_reflect", "grpo", "sft_none", "unsolved")
CONTROLS = (
    *("four_plain", "sft_none_gated", "another", "supervised", "r3l_120", "sft_none_120"),
    *("rltf", "sdpo", "rlsd", "hill"),
)


def _workshop(hint: str) -> World:
    options = {"hint": hint} if hint != "what" else {}
    return World(
        name=hint,
        env="workshop",
        settings=HERE / "rare.yaml",
        variants=ARMS,
        taught=options,
        trained=(options,),
        least={"told": 0.9, "guided": 0.3},
        withheld=10,
        controls=CONTROLS if hint == "what" else (),
        changed={"tools": 7},  # nine of the twelve items then need another tool
    )


LAKE = World(
    name="lake",
    env="frozen_lake",
    settings=HERE / "lake.yaml",
    variants=("r3l", "no_reflect", "grpo"),
    taught={"size": 3, "max_response_tokens": 8},
    lengths=(60, 120),  # 300 to 400 demonstrations, and twice as many
    trained=tuple(
        {"size": size, "holes": holes, "steps": 15}
        for size, holes in ((5, 8), (6, 9), (6, 12), (7, 16), (8, 21))
    ),
    least={"gain": 0.1},
    success=(0.005, 0.02),
    strict=True,
    tasks=300,
)
KITCHEN = World(
    name="kitchen",
    env="lab/real_model/kitchen.py:Kitchen",
    settings=HERE / "kitchen.yaml",
    variants=("r3l", "no_reflect", "grpo"),
    taught={},
    lengths=(120, 240),  # about 300 demonstrations, and twice as many
    trained=tuple({"max_steps": steps} for steps in (8, 7, 10)),
    least={"gain": 0.1},
    withheld=1,
    success=(0.005, 0.02),
    strict=True,
    graded=True,
)
KITCHEN_NARROW = replace(KITCHEN, name="kitchen_narrow", taught={"lessons": "narrow"})
KITCHEN_SPARSE = replace(
    KITCHEN,
    name="kitchen_sparse",
    like="kitchen",
    trained=tuple({**options, "rewards": "sparse"} for options in KITCHEN.trained),
    graded=False,
)
WORLDS = {
    world.name: world
    for world in (
        *(_workshop("what"), _workshop("where"), LAKE),
        *(KITCHEN_NARROW, KITCHEN, KITCHEN_SPARSE),
    )
}


@dataclass
class Warm:
    """Warm policies and their probes. `out`: folder of the models. `lines`: file of the probes."""

    out: Path
    lines: Path
    machine: str
    dry_run: bool = False
    more: Sequence[str] = field(default_factory=tuple)

    def policy(self, world: World, seed: int) -> tuple[Path, int, Options]:
        """Makes the warm policy of a seed unless it is there. Returns its folder, the length of its
        warm-up and the options of its runs. A dry run shows the first command instead. Raises
        UserError if the world is strict and nothing counts."""
        for steps in world.lengths:
            model = self.model(world, steps, seed)
            warm_up(model, world.warmup(steps, seed), self.dry_run)
            if self.dry_run:
                self.configured(world, Path("builtin"), world.trained[0])
                return model, steps, world.trained[0]
            for options, probe in self.probes(world, model, seed, steps):
                if world.counts(probe):
                    return model, steps, options
        if world.strict:
            raise UserError(
                f"world {world.name}, seed {seed}: no option counts by its probes in {self.lines}; "
                "change World.trained or World.lengths"
            )
        return model, steps, world.trained[-1]

    def model(self, world: World, steps: int, seed: int) -> Path:
        """Returns the folder of a warm policy."""
        return self.out / "policies" / f"{world.like or world.name}-{steps}-{seed}"

    def probes(
        self, world: World, model: Path, seed: int, steps: int
    ) -> list[tuple[Options, Named]]:
        """Returns the probes of a policy under the world's options, up to the first that counts.
        Makes those that have no line."""
        found, missing = list[tuple[Options, Named]](), list[Options]()
        for options in world.trained:
            named = self._named(world, seed, steps, options)
            line = next((x for x in read_lines(self.lines) if x.items() >= named.items()), None)
            if line is None:
                missing.append(options)
            else:
                found.append((options, line))
        if missing and not any(world.counts(line) for _, line in found):
            found += asyncio.run(self._made(world, model, seed, steps, missing))
        return found

    async def _made(
        self, world: World, model: Path, seed: int, steps: int, some: Sequence[Options]
    ) -> list[tuple[Options, Named]]:
        """Probes a policy under some options, up to the first that counts, with a line for each."""
        found = list[tuple[Options, Named]]()
        async with aclosing(self._measured(world, model, some)) as probes:
            async for options, values in probes:
                line = self._named(world, seed, steps, options) | values
                append(self.lines, line)
                found.append((options, line))
                if world.counts(line):
                    break
        return found

    def _named(self, world: World, seed: int, steps: int, options: Options) -> Named:
        names = {"kind": "probe", "machine": self.machine, "world": world.name, "seed": seed}
        return names | {"warm_steps": steps, "options": json.dumps(options)}

    async def _measured(
        self, world: World, model: Path, some: Sequence[Options]
    ) -> AsyncGenerator[tuple[Options, Named]]:
        """Yields what probes of a policy under some options find, in their order."""
        config = self.configured(world, model, some[0])
        async with own_engine(config, model / "probe.log") as policy:
            for options in some:
                own = self.configured(world, model, options).env.options
                given = (policy, world.env, world.tasks, own)
                plain: Named = {}
                if world.success != ANY:
                    success = await first_success(*given, actor=config.actor)
                    plain = {"tasks": world.tasks, "success": success}
                    if not world.within(success):
                        yield options, plain
                        continue
                yield options, asdict(await measure(*given, actor=config.actor)) | plain

    def configured(self, world: World, model: Path, options: Options) -> RunConfig:
        """Returns the settings of the runs of a world, with a model."""
        given = [f"model={model}", "actor.reflect_temperature=1", *overrides(options), *self.more]
        return configuration.load(world.settings, given)


def overrides(options: Options) -> Iterator[str]:
    """Yields the settings of the options of a world."""
    for name, value in options.items():
        yield f"env.options.{name}={value}"
