"""The experiments: which variants run in which cells, with how many seeds and what budget."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from lab.results.cells import BRIEF, CELLS, CUT_OFF, EASIEST, HINTED, LONG_ROW, Cell
from lab.results.lines import digest
from lab.results.taught import OF_KNOWN_WORTH, Guidance
from r3l.algorithms.algorithm import Algorithm
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.settings import yaml_text


@dataclass(frozen=True)
class Variant:
    """An algorithm under some settings. `lag`: optimizer steps by which the sampled policy is
    behind the trained one; `teacher`: whose reflections are used (lab.results.taught);
    `stored`: batches come from a buffer service; `named`: what `overrides` were called when its
    lines were made, if anything else."""

    label: str
    overrides: tuple[str, ...]
    lag: int = 0
    teacher: Guidance = ""
    stored: bool = False
    named: tuple[str, ...] = ()


def _r3l(label: str, *settings: str, lag: int = 0, teacher: Guidance = "") -> Variant:
    named = tuple(f"algorithm.{setting}" for setting in settings)
    return Variant(label, ("algorithm=r3l", *named), lag, teacher)


def _stored(label: str, *settings: str) -> Variant:
    return Variant(label, (*STORED, *settings), stored=True)


def _r3(label: str, *settings: str, named: tuple[str, ...]) -> Variant:
    return Variant(label, ("algorithm=r3", *settings), named=("algorithm=r3", *named))


def _taught(label: str, guidance: Guidance, *settings: str) -> Variant:
    """R³L with guidance of known worth, and groups from a buffer service, which has the gate."""
    return Variant(label, ("algorithm=r3l", *settings, *SERVED), teacher=guidance, stored=True)


def _advised(label: str, name: str, *settings: str) -> Variant:
    """Another algorithm that reads the advice alone, as the warm policies were taught."""
    return Variant(label, (f"algorithm={name}", "algorithm.guidance_text=advice", *settings))


_READ = "algorithm.advice='advice: {improvement_suggestion}.'"
"""What the teacher reads: the advice as the worlds show it to a retry."""
STORED_TASKS = 128
SERVED = ("buffer.max_staleness=0", "buffer.lease_s=3600")
STORED = (f"env.train_tasks={STORED_TASKS}", *SERVED)
GATE = "algorithm.gate=measured"
NO_SFT = "algorithm.sft_weight=0"
_NO_RECALL, _NO_CONTEXT = "algorithm.recall_count=0", "algorithm.reflection=false"
_NO_RANKING = "algorithm.ranking=false"
_IN_CONTEXT = ("explorer=in_context", "explorer.share=0.5")
"""What `algorithm.reflection` was called."""
_THREE_OF_FOUR = ("algorithm.share=0.75", "algorithm.kl_coef=0.01")
"""What the lines of `explorer=prefix` and `explorer=partial` had: more started groups, and a KL."""
_REUSE = ("buffer.sampler.reuse=4", "buffer.sampler.replay_staleness=100")

VARIANTS: dict[str, Variant] = {
    "warm": Variant("warm policy, untrained", ("algorithm=grpo",)),
    "r3l": _r3l("R³L"),
    "no_credit": _r3l("w/o credit", "credit=false"),
    "no_amplify": _r3l("w/o amplification", "amplify=false"),
    "no_reflect": _r3l("w/o reflect", "reflect=false"),
    "from_start": _r3l("from start (with credit)", "from_start=true"),
    "no_guidance": _r3l("no guidance (with credit)", "guidance=false"),
    "no_credit_from_start": _r3l("w/o credit, from start", "credit=false", "from_start=true"),
    "no_credit_no_guidance": _r3l("w/o credit, no guidance", "credit=false", "guidance=false"),
    "grpo": Variant("GRPO", ("algorithm=grpo",)),
    "grpo_no_kl": Variant("GRPO without reference", ("algorithm=grpo", "algorithm.kl_coef=0")),
    "grpo_equal": Variant("GRPO, as many tokens a step", ("algorithm=grpo",)),
    "raft": Variant("RAFT", ("algorithm=raft",)),
    "opmd": Variant("OPMD", ("algorithm=opmd",)),
    "reflect_grpo": Variant("Reflect-GRPO", ("algorithm=reflect_grpo",)),
    "critique_grpo": Variant("Critique-GRPO", ("algorithm=critique_grpo",)),
    "dapo": Variant("DAPO", ("algorithm=dapo",)),
    "gspo": Variant("GSPO", ("algorithm=gspo",)),
    "rloo": Variant("RLOO", ("algorithm=rloo",)),
    "r3l_kl": _r3l("R³L with a KL term", "kl_coef=0.001"),
    "r3l_failures": _r3l("R³L, reflects on failures", "reflect_on=failures"),
    "max_advantage": _r3l("advantage of a success 1 (release)", "max_advantage=1.0"),
    "r3l_std": _r3l("R³L, divided by σ", "std=population"),
    "sft_none": _r3l("without auxiliary loss", "sft_weight=0"),
    "sft_quarter": _r3l("auxiliary tokens at most 1/4 of the others", "sft_share=0.25"),
    "sft_tenth": _r3l("auxiliary loss × 0.1", "sft_weight=0.1"),
    "r3l_lag_1": _r3l("R³L, a step stale", lag=1),
    "r3l_lag_4": _r3l("R³L, four steps stale", lag=4),
    "r3l_clipped_lag_4": _r3l("R³L, clipped ratios, four steps stale", "clipped=true", lag=4),
    "grpo_lag_1": Variant("GRPO, a step stale", ("algorithm=grpo",), lag=1),
    "grpo_lag_4": Variant("GRPO, four steps stale", ("algorithm=grpo",), lag=4),
    "restart": _r3l("restart without guidance", "guidance=false", "from_start=true"),
    "teacher": _r3l("reflections by the environment", teacher="useful"),
    "pivot_earlier": _r3l("pivots 2 steps earlier", "pivot_shift=-2"),
    "pivot_later": _r3l("pivots 2 steps later", "pivot_shift=2"),
    "grpo_lr_low": Variant("GRPO, learning rate / 2", ("algorithm=grpo", "learner.lr=1.0e-4")),
    "grpo_lr_high": Variant("GRPO, learning rate × 2", ("algorithm=grpo", "learner.lr=4.0e-4")),
    "grpo_lr_4": Variant("GRPO, learning rate × 4", ("algorithm=grpo", "learner.lr=8.0e-4")),
    "grpo_lr_8": Variant("GRPO, learning rate × 8", ("algorithm=grpo", "learner.lr=1.6e-3")),
    "grpo_lr_16": Variant("GRPO, learning rate × 16", ("algorithm=grpo", "learner.lr=3.2e-3")),
    "r3l_lr_high": Variant("R³L, learning rate × 2", ("algorithm=r3l", "learner.lr=4.0e-4")),
    "r3l_lr_4": Variant("R³L, learning rate × 4", ("algorithm=r3l", "learner.lr=8.0e-4")),
    "r3l_lr_8": Variant("R³L, learning rate × 8", ("algorithm=r3l", "learner.lr=1.6e-3")),
    "r3l_lr_16": Variant("R³L, learning rate × 16", ("algorithm=r3l", "learner.lr=3.2e-3")),
    "stored_grpo": _stored("GRPO", "algorithm=grpo"),
    "stored_r3l": _stored("R³L", "algorithm=r3l"),
    "r3l_recall": _stored("R³L with recall", "algorithm=r3l", "algorithm.recall_count=2"),
    "r3": replace(_stored("R³", "algorithm=r3"), named=(*STORED, "algorithm=r3", *_IN_CONTEXT)),
    "r3_no_recall": replace(
        _stored("R³ without replay", "algorithm=r3", _NO_RECALL),
        named=(*STORED, "algorithm=r3", _NO_RECALL, *_IN_CONTEXT),
    ),
    "r3_no_context": replace(
        _stored("R³ without reflection in context", "algorithm=r3", _NO_CONTEXT),
        named=(*STORED, "algorithm=r3"),
    ),
    "ranked": _r3("truncated ranked by entropy", _NO_RECALL, _NO_CONTEXT, named=(_NO_RECALL,)),
    "ranked_random": Variant(
        "ranked at random",
        ("algorithm=lab/results/random_ranking.py:RandomRanking", _NO_RECALL, _NO_CONTEXT),
        named=("algorithm=benchmarks/results/random_ranking.py:RandomRanking", _NO_RECALL),
    ),
    "unranked": _r3(
        "not ranked", _NO_RECALL, _NO_CONTEXT, _NO_RANKING, named=(_NO_RECALL, _NO_RANKING)
    ),
    "arpo": _stored("ARPO", "algorithm=arpo"),
    "replay_half": _stored(
        "GRPO, fresh to replayed 1 : 1",
        "algorithm=grpo",
        *_REUSE,
        "buffer.sampler.replay_share=0.5",
    ),
    "replay_most": _stored(
        "GRPO, fresh to replayed 1 : 3",
        "algorithm=grpo",
        *_REUSE,
        "buffer.sampler.replay_share=0.75",
    ),
    "r3l_replay_most": _stored(
        "R³L, fresh to replayed 1 : 3", "algorithm=r3l", *_REUSE, "buffer.sampler.replay_share=0.75"
    ),
    "spear": _stored(
        "SPEAR",
        "algorithm=spear",
        "buffer.sampler.reuse=2",
        "buffer.sampler.replay_share=0.5",
        "buffer.sampler.replay_staleness=5",
    ),
    "prefix": replace(
        _stored("PrefixRL, earlier form", "algorithm=prefix_rl", *_THREE_OF_FOUR),
        named=(*STORED, "algorithm=grpo", "explorer=prefix"),
    ),
    "partial": replace(
        _stored("ExIt, earlier form", "algorithm=exit", *_THREE_OF_FOUR),
        named=(*STORED, "algorithm=grpo", "explorer=partial"),
    ),
    "curriculum": _stored("GRPO, curriculum", "algorithm=grpo", "buffer.task_sampler=curriculum"),
    "no_retries": _taught("without retries", "", "algorithm.reflect=false"),
    "useful": _taught("useful guidance", "useful"),
    "useful_gated": _taught("useful guidance, measured gate", "useful", GATE),
    "useless": _taught("useless guidance", "useless"),
    "useless_gated": _taught("useless guidance, measured gate", "useless", GATE),
    "harmful": _taught("harmful guidance", "harmful"),
    "harmful_gated": _taught("harmful guidance, measured gate", "harmful", GATE),
    "useful_only": _taught("useful guidance, no auxiliary loss", "useful", NO_SFT),
    "useless_only": _taught("useless guidance, no auxiliary loss", "useless", NO_SFT),
    "harmful_only": _taught("harmful guidance, no auxiliary loss", "harmful", NO_SFT),
    "useless_gated_only": _taught(
        "useless guidance, measured gate, no auxiliary loss", "useless", GATE, NO_SFT
    ),
    "harmful_gated_only": _taught(
        "harmful guidance, measured gate, no auxiliary loss", "harmful", GATE, NO_SFT
    ),
    "useful_gated_only": _taught(
        "useful guidance, measured gate, no auxiliary loss", "useful", GATE, NO_SFT
    ),
    "unsolved": _r3l("R³L, reflects where all attempts failed", "reflect_on=unsolved"),
    "rltf": _advised("first-turn baseline (RLTF)", "rltf"),
    "sdpo": _advised("re-reading (SDPO)", "sdpo", _READ),
    "rlsd": _advised("re-reading, sizes alone (RLSD)", "rlsd", _READ),
    "four_plain": _r3l("four plain attempts", "reflect=false", "group_size=4"),
    "another": _r3l("another task's advice", teacher="another"),
    "supervised": Variant(
        "supervised on right answers",
        ("algorithm=raft", "algorithm.group_size=1"),
        teacher="demonstrated",
    ),
    "own_only": _taught("own guidance, no auxiliary loss", "", NO_SFT),
    "own_gated_only": _taught("own guidance, measured gate, no auxiliary loss", "", GATE, NO_SFT),
    "flat_replaced": _stored(
        "DAPO, flat groups replaced by stored ones",
        "algorithm=dapo",
        "buffer.sampler.reuse=4",
        "buffer.sampler.replay_staleness=100",
        "buffer.sampler.replay_no_contrast=true",
    ),
}


STEPS = 8
"""Optimizer steps of R³L after which the run is stopped: each of its 128 tasks was played once."""
OFFLINE_STEPS = 24
REUSED = ("buffer.sampler=uniform", "buffer.sampler.reuse=4")
OFFLINE: dict[str, tuple[str, tuple[str, ...]]] = {
    "r3l": ("R³L", ("algorithm=r3l",)),
    "grpo": ("GRPO", ("algorithm=grpo",)),
    "raft": ("RAFT", ("algorithm=raft",)),
    "grpo_lr_10": ("GRPO, learning rate × 10", ("algorithm=grpo", "learner.lr=2.0e-3")),
    "grpo_lr_100": ("GRPO, learning rate × 100", ("algorithm=grpo", "learner.lr=2.0e-2")),
}
"""Label and settings of every offline run."""

ESTIMATORS: dict[str, tuple[str, tuple[str, ...]]] = {
    "credit": ("R³L", ("algorithm=r3l",)),
    "no_credit": ("w/o credit", ("algorithm=r3l", "algorithm.credit=false")),
    "credit_plain": ("R³L w/o amplification", ("algorithm=r3l", "algorithm.amplify=false")),
    "no_credit_plain": (
        "w/o credit, w/o amplification",
        ("algorithm=r3l", "algorithm.credit=false", "algorithm.amplify=false"),
    ),
}
"""Label and settings of every gradient that is measured on stored groups."""
REFERENCE = ("algorithm=r3l", "algorithm.reflect=false", "algorithm.amplify=false")
"""Settings of the plain policy gradient that they are compared with."""
ALONE = ("algorithm.sft_weight=0",)
"""The auxiliary loss is left out of them: it does not depend on credit."""
BATCH = 16
"""Groups of an optimizer step before they are measured."""


@dataclass(frozen=True)
class Run:
    """One training run. `tokens`: it ends when so many were sampled (None: at its cell's limit of
    steps, or once its policy has learned the world)."""

    experiment: str
    cell: Cell
    variant: str
    seed: int
    tokens: int | None = None

    @property
    def key(self) -> tuple[str, str, int]:
        """What names it among the runs of its experiment with the same policy."""
        return self.cell.name, self.variant, self.seed

    def with_policy(self, number: int) -> "Run":
        """The same run from another warm policy of its cell."""
        return replace(self, cell=replace(self.cell, number=number))

    def settings(self, *, named: bool = False) -> list[str]:
        """Its settings, over SETTINGS. With `named`, as they were called when it was run."""
        variant = VARIANTS[self.variant]
        own = variant.named if named and variant.named else variant.overrides
        if self.variant == "grpo_equal":
            own = (*own, f"algorithm.group_size={self.cell.equal}")
        return [*BASE, *self.cell.overrides(), *own, f"seed={self.seed}"]

    def config(self, model: Path | str) -> RunConfig:
        """Its whole configuration, from the policy in folder `model`."""
        return load(model, self.settings())

    def setup(self) -> str:
        """Digest of all that was set for it: SETTINGS, its own, its world and budget.
        Settings that nobody gave are not in it, so that a new one changes no old run."""
        variant = VARIANTS[self.variant]
        taught = bool(variant.teacher)
        ways: tuple[object, ...] = (self.tokens, self.cell.steps, variant.lag, taught)
        if variant.teacher not in ("", "useful"):
            ways = (*ways, variant.teacher)
        if variant.stored:
            ways = (*ways, "stored")
        return digest(parsed(SETTINGS), self.settings(named=True), self.cell.digested, ways)


@cache
def parsed(file: Path) -> dict[str, object]:
    """The settings that a YAML file gives."""
    return dict(yaml_text.parse(file.read_text(encoding="utf-8"), str(file)))


def setup_of(line: Mapping[str, Any]) -> str | None:
    """The setup that the line of a run has today."""
    wanted = (line["experiment"], line["cell"], line["variant"], line["seed"])
    return _setups(line.get("policy", 0)).get(wanted)


@cache
def _setups(policy: int) -> dict[tuple[str, str, str, int], str]:
    made = (run.with_policy(policy) for run in runs())
    return {(run.experiment, *run.key): run.setup() for run in made}


@dataclass(frozen=True)
class Part:
    """Variants with one number of seeds in some cells."""

    cells: tuple[str, ...]
    variants: tuple[str, ...]
    seeds: int
    tokens: int | None = None


SETTINGS = Path(__file__).parent / "settings.yaml"
BASE = ("actor.max_model_len=4096", "learner.tokens_per_micro_batch=2048")
"""Settings of every run, over SETTINGS."""


def load(model: Path | str, settings: Sequence[str]) -> RunConfig:
    """Loads the settings of a run, over SETTINGS."""
    return configuration.load(SETTINGS, [f"model={model}", *as_measured(settings)])


def as_measured(settings: Sequence[str]) -> list[str]:
    """Returns settings with the two that all lines have and the paper does not: reflections are
    sampled at temperature 1, and a retry is shown the advice alone, as its warm policy was
    taught."""
    retries = {"algorithm=r3l", "algorithm=reflect_grpo"}.intersection(settings)
    shown = ["algorithm.guidance_text=advice"] if retries else []
    return ["actor.reflect_temperature=1", *settings, *shown]


E0_TOKENS = 60_000
_MAP = tuple(name for name, cell in CELLS.items() if cell.world is not None)
_COSTLY = tuple(
    name for name in _MAP if CELLS[name].equal > Algorithm.model_fields["group_size"].default
)
"""Cells in which a step of R³L samples more tokens than one of GRPO."""
_RHO_1 = tuple(name for name in _MAP if CELLS[name].rho == 1)
_OTHER_RHO = tuple(name for name in _MAP if name not in _RHO_1)
EQUAL_COMPUTE = ("grpo_no_kl", "sft_none", "sft_quarter")
WITH_GUIDANCE = tuple(name + gate for name in OF_KNOWN_WORTH for gate in ("", "_gated"))
"""Variants with guidance of known worth, each with retries in every group and with the gate."""
_EASY, _HARD = "base-0.13-rho-1", "base-0.002-rho-1"
REPLAYED = "base-0.005-rho-1"
GRPO_FASTER = ("grpo_lr_high", "grpo_lr_4", "grpo_lr_8", "grpo_lr_16")
R3L_FASTER = ("r3l_lr_high", "r3l_lr_4", "r3l_lr_8", "r3l_lr_16")
"""Variants with higher learning rates than the common one."""
ADVISED = ("rltf", "sdpo", "rlsd", "unsolved")
"""Variants that use advice in another way."""
AUXILIARY = ("sft_none", "own_only", "own_gated_only")
"""Retries without auxiliary loss: in every group, and where the gate has them."""
SUPERVISED_TOKENS = 40_000
_LEVERS = ("r3l_failures", "max_advantage", "sft_none", "sft_tenth")
_STALE = ("r3l_lag_1", "r3l_lag_4", "r3l_clipped_lag_4", "grpo_lag_1", "grpo_lag_4")
_CONTROLS = ("restart", "teacher", "pivot_earlier", "pivot_later")
_ROWS = ("no_credit", "no_amplify", "from_start", "no_guidance", "no_credit_from_start")
_HISTORY = ("r3l_recall", "r3", "r3_no_recall", "r3_no_context", "arpo",
            "replay_half", "replay_most", "r3l_replay_most",
            "spear", "prefix", "partial", "curriculum", "flat_replaced")  # fmt: skip
LONG_ROW_VARIANTS = ("r3l", "no_credit", "no_amplify", "r3l_std", "sft_none", "grpo")
LONG_ROW_SEEDS = 6
_MORE = ("no_credit_no_guidance", "r3l_kl", "raft", "opmd", "reflect_grpo",
         "critique_grpo", "dapo", "gspo", "rloo")  # fmt: skip

MAP = "e1"
"""The experiment of the regime map."""
EXPERIMENTS: dict[str, tuple[Part, ...]] = {
    MAP: (
        Part(_MAP, ("r3l", "grpo"), 6),
        Part(_MAP, ("r3l_failures", "no_reflect"), 6),
        Part(_COSTLY, ("grpo_equal",), 6),
        Part((_EASY, _HARD), ("grpo_lr_low",), 3),
        Part((_EASY, _HARD), (*GRPO_FASTER, *R3L_FASTER), 6),
    ),
    "e0": (
        Part((EASIEST.name,), ("warm",), 5),
        Part((EASIEST.name,), ("r3l", "grpo", "no_reflect"), 5, E0_TOKENS),
        Part((EASIEST.name,), (*_ROWS, *_MORE), 3, E0_TOKENS),
    ),
    "e2": (
        Part((_EASY, _HARD), (*_LEVERS, *_STALE), 3),
        Part(tuple(cell.name for cell in BRIEF), ("grpo", "r3l", "r3l_failures"), 3),
    ),
    "e3": (Part((_EASY, _HARD), _CONTROLS, 3),),
    "e9": (Part(tuple(cell.name for cell in CUT_OFF), ("ranked", "ranked_random", "unranked"), 3),),
    "e10": (
        Part(tuple(cell.name for cell in HINTED), ("r3l", "grpo"), 3),
        Part((LONG_ROW.name,), LONG_ROW_VARIANTS, LONG_ROW_SEEDS),
    ),
    "e11": (
        Part(_RHO_1, ("grpo", *EQUAL_COMPUTE, "r3l"), 3),
        Part(_OTHER_RHO, EQUAL_COMPUTE, 3),
    ),
    "e12": (
        Part((_EASY, REPLAYED), ("no_retries", *WITH_GUIDANCE), 3),
        Part((_EASY, REPLAYED), ("useless_gated_only", "harmful_gated_only"), 1),
        Part((_EASY, REPLAYED), ("useful_only", "useless_only", "harmful_only"), 1),
        Part((_EASY, REPLAYED), ("useful_gated_only",), 1),
    ),
    "e13": (
        Part((_EASY, REPLAYED), ("no_reflect", "r3l", "grpo_no_kl", *ADVISED), 3),
        Part((_EASY, REPLAYED), (*AUXILIARY, "four_plain", "another"), 3),
        Part((_EASY, REPLAYED), ("supervised",), 3, SUPERVISED_TOKENS),
    ),
    "e6": (Part((REPLAYED,), ("stored_grpo", "stored_r3l", *_HISTORY), 3),),
}


def runs(names: tuple[str, ...] = tuple(EXPERIMENTS)) -> Iterator[Run]:
    """The runs of some experiments, the first seed of everything before the second of anything."""
    parts = [(name, part) for name in names for part in EXPERIMENTS[name]]
    for seed in range(max(part.seeds for _, part in parts)):
        for name, part in parts:
            for cell in part.cells:
                for variant in part.variants if seed < part.seeds else ():
                    yield Run(name, CELLS[cell], variant, seed, part.tokens)


def offline_setup(cell: Cell, variant: str) -> str:
    """Digest of all that was set for an offline run and for the stopped run before it."""
    trained = (*OFFLINE[variant][1], *REUSED, OFFLINE_STEPS)
    world = (cell.overrides(), cell.setup())
    return digest(parsed(SETTINGS), BASE, world, (*STORED, STEPS), trained)


def offline_setup_of(line: Mapping[str, Any]) -> str | None:
    """The setup that the line of an offline run has today."""
    if line["cell"] not in CELLS or line["variant"] not in OFFLINE:
        return None
    return offline_setup(CELLS[line["cell"]], line["variant"])


def gradients_setup_of(line: Mapping[str, Any]) -> str | None:
    """The setup that a line about gradients has today; one that names no cell is of EASIEST."""
    counts = (line["groups"], line["reference"])
    common = (parsed(SETTINGS), ESTIMATORS, REFERENCE, ALONE, BATCH, *counts)
    cell = CELLS.get(line.get("cell", EASIEST.name))
    if cell is None:
        return None
    return digest(*common, *((BASE, cell.digested) if cell != EASIEST else ()))
