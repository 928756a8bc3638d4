"""The files of results: JSON, one line a run, each checked when it is read."""

import hashlib
import json
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from r3l.errors import UserError

ROOT = Path(__file__).parent.parent.parent
LINES = ROOT / "lab" / "lines"
"""One line a run, and the predictions that were registered before it."""
DOCS = ROOT / "docs"
PAGES = DOCS / "results"
APPENDIX = PAGES / "appendix"
POLICIES = ROOT / "build" / "policies"


class _Curve(TypedDict):
    tokens: list[float]
    success_base: list[float | None]


class _RunCurve(_Curve):
    cpu: list[float]


class _SystemCurve(_Curve):
    wall: list[float]


class _Run(TypedDict):
    experiment: str
    cell: str
    variant: str
    seed: int
    setup: str
    success: float
    steps: int
    attempts: int
    curve: _RunCurve


class _System(TypedDict):
    experiment: str
    cell: str
    variant: str
    seed: int
    setup: str
    before: float
    before_reward: float
    success: float
    reward: float
    curve: _SystemCurve


class _Trust(TypedDict):
    ess: float
    kl: float
    lost_at: int


class _Offline(TypedDict):
    cell: str
    variant: str
    seed: int
    setup: str
    before: float
    after: float
    trust: _Trust


class _Estimate(TypedDict):
    noise: float
    cosine: float


class _Gradients(TypedDict):
    step: int
    seed: int
    setup: str
    groups: int
    reference: int
    halves: float
    credit: _Estimate
    no_credit: _Estimate
    credit_plain: _Estimate
    no_credit_plain: _Estimate


class _Warm(TypedDict):
    cell: str
    setup: str
    told: float
    reflection_cost: float


class _RealModel(TypedDict):
    kind: str
    machine: str
    dose: NotRequired[int]
    variant: str
    seed: int


class _Rare(TypedDict):
    kind: str
    machine: str
    world: str
    variant: NotRequired[str]
    seed: int
    warm_steps: int


SHAPES: dict[str, type] = {
    "e4": _Gradients,
    "e5": _System,
    "e8": _Offline,
    "warm": _Warm,
    "real-model": _RealModel,
    "rare": _Rare,
}
"""What a line needs by the name of its file, if not what a training run has."""
KEYS = {
    "e4": ("cell", "step", "seed"),
    "warm": ("cell", "policy", "told", "reflection_cost"),
    "real-model": ("kind", "machine", "dose", "variant", "seed"),
    "rare": ("kind", "machine", "world", "variant", "seed", "warm_steps", "options"),
}
"""What tells the lines of a file apart, if not cell, variant, seed and the number of the warm
policy, where a line has it."""


def append(file: Path, line: dict[str, Any]) -> None:
    """Append a line in a single write. Makes the folder."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab", buffering=0) as out:
        out.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")


Setup = Callable[[dict[str, Any]], str | None]
"""The digest that the setup of a line has today; None for a run that no command makes."""


def digest(*parts: object) -> str:
    """A short name of a setup. Parts: plain values."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:12]


def read_lines(file: Path, setup: Setup | None = None) -> list[dict[str, Any]]:
    """The lines of a results file, none if there is no file. Raises UserError for one that is not
    JSON, has not what the page needs, is the second of a run, or is of another setup than `setup`
    says."""
    shape, named = (
        SHAPES.get(file.stem, _Run),
        KEYS.get(file.stem, ("cell", "variant", "seed", "policy")),
    )
    records, places = list[dict[str, Any]](), dict[tuple[Any, ...], int]()
    texts = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    for number, text in enumerate(texts, 1):
        try:
            line = json.loads(text)
        except ValueError:
            raise UserError(f"{file}:{number}: not a line of JSON; delete the line") from None
        try:
            msgspec.convert(line, shape)
        except msgspec.ValidationError as error:
            raise UserError(f"{file}:{number}: {error}; delete the line") from None
        curve = line.get("curve", {})
        if len({len(values) for values in curve.values()}) > 1:
            raise UserError(
                f"{file}:{number}: the parts of its curve differ in length; delete the line"
            )
        key = tuple(line[name] for name in named if line.get(name) is not None)
        if setup is not None and line["setup"] != setup(line):
            raise UserError(
                f"{file}:{number}: {' '.join(map(str, key))} is a run of another setup; delete the "
                "line, or choose another --lines"
            )
        if key in places:
            raise UserError(
                f"{file}:{number}: {' '.join(map(str, key))} is also in line {places[key]}; "
                "a run has one line, delete the other"
            )
        places[key] = number
        records.append(line)
    return records


def known(option: str, names: Iterable[str], there: Iterable[str]) -> tuple[str, ...]:
    """The names. Raises UserError for one that is not `there`."""
    names, there = tuple(names), tuple(there)
    for name in names:
        if name not in there:
            raise UserError(f"{option} {name!r}: unknown; there are {', '.join(there)}")
    return names


def processor() -> str:
    """The kind of this machine's processor; CPU seconds differ between kinds (Linux)."""
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()
