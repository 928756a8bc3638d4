"""From the lines of real-model.jsonl to the appendix on SmolLM2, by the template page.md."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lab.real_model.step_rows import ALL
from lab.real_model.training import VARIANTS
from lab.results.lines import APPENDIX, LINES, read_lines
from lab.results.statistics import T_975

FILE, PAGE = LINES / "real-model.jsonl", APPENDIX / "smollm2.md"
TEMPLATE = Path(__file__).with_name("page.md")
KINDS = {
    "own schema": "its own reflection",
    "own outcome first": "its own, outcome first",
    "own free": "its own, without the schema",
    "another": "another task's reflection",
    "empty": "empty advice",
    "right": "the right advice",
    "plain": "a plain second attempt",
}
TITLES = {
    "grpo": "GRPO without reference",
    "grpo_float32": "GRPO without reference, products in float32",
    "no_reflect": "R³L without reflection",
    "r3l": "R³L",
    "capped": "R³L, auxiliary rows capped at 0.25",
    "sft_none": "R³L without auxiliary loss",
    "unsolved": "R³L, reflects where all attempts failed",
    "outcome_first": "R³L, outcome first",
    "gated": "R³L, measured gate",
    "grpo_long": "GRPO without reference, 80 steps",
    "r3l_long": "R³L, 80 steps",
    "four_plain": "four plain attempts",
    "sft_none_gated": "R³L without auxiliary loss, measured gate",
    "another": "another task's advice",
    "supervised": "supervised on right answers",
    "r3l_120": "R³L, 120 steps",
    "sft_none_120": "R³L without auxiliary loss, 120 steps",
    "rltf": "first-turn baseline (RLTF)",
    "sdpo": "re-reading (SDPO)",
    "rlsd": "re-reading, sizes alone (RLSD)",
    "hill": "reflections rewarded by reliance (HiLL)",
}
assert TITLES.keys() == VARIANTS.keys()
ROWS = ("base", "distilled", "reflect", "retry")
PHASES = ("pack", "forward", "backward", "update")
UNITS = {
    "tokens": "sampled tokens", "trained": "trained tokens", "cpu": "CPU seconds",
    "wall": "seconds",
}  # fmt: skip
Lines = Sequence[dict[str, Any]]
FEWEST = 3
"""Of fewer warm policies there is no interval."""
Policy = tuple[str, int, int]
"""A warm policy: its machine, its dose and the first of the seeds that begin from it."""
SHARED: dict[tuple[str, int], tuple[int, ...]] = {
    ("AMD EPYC", 200): (1, 2),
    ("AMD EPYC", 1000): (2, 3),
}
"""Seeds that begin from one warm policy, by machine and dose. On a GPU all seeds of a dose do."""


def render(lines: Lines) -> str:
    """The text of the page."""
    here = [line for line in lines if not on_gpu(line)]
    probes = sorted((x for x in lines if x["kind"] == "probe"), key=_where)
    runs = [line for line in here if line["kind"] == "train"]
    elsewhere = [line for line in lines if line["kind"] == "train" and on_gpu(line)]
    elsewhere = [line for line in elsewhere if "stopped" not in line]
    tables = {
        "gains": gains(probes),
        "ways": ways(probes),
        "examples": examples(probes),
        "pairs": pairs([line for line in lines if line["kind"] == "train"]),
        "training": training(runs, ("tokens", "trained", "cpu")),
        "gpu_training": training(elsewhere, ("tokens", "trained", "cpu", "wall")),
        "workshop": workshop([line for line in lines if line["kind"] == "workshop"]),
        "calculator": calculator([line for line in lines if line["kind"] == "calculator"]),
        "phases": phases(runs),
        "rows": rows_of_a_step(runs),
    }
    text = TEMPLATE.read_text(encoding="utf-8")
    for name, table in tables.items():
        text = text.replace(f"<!-- {name} -->", table if lines else "No line yet.")
    return text


def gains(probes: Lines) -> str:
    """The guidance gain by kind and dose, with 95 % intervals."""
    rows = [["success of first attempts", *(f"{line['success']:.2f}" for line in probes)]]
    for kind, title in KINDS.items():
        rows.append([title, *(_gain(line["gains"].get(kind)) for line in probes)])
    return _table(["guidance", *map(_named, probes)], rows)


def ways(probes: Lines) -> str:
    """What reflections are like, by dose and by how they were decoded."""
    rows = []
    for line in probes:
        for way, found in line["ways"].items():
            shares = (found[name] for name in ("parsed", "right_verdict", "retried_failures"))
            causes = ", ".join(f"{cause} {count}" for cause, count in found["causes"].items())
            cells = [f"{share:.2f}" for share in shares]
            dose = [machine(line), f"{line['dose']:,}"]
            rows.append([*dose, way, *cells, f"{found['tokens']:.0f}", causes or "–"])
    head = (
        "machine, dose, decoded, can be read, verdict is right, failures retried, tokens, not read"
    )
    return _table(head.split(", "), rows)


def examples(probes: Lines) -> str:
    """A reflection by dose and way, next to the answer that it is about."""
    of_dose = {line["dose"]: line for line in reversed(probes)}
    shown = [
        f"dose {dose:,}, {way}, on {answer}\n    {text}"
        for dose, line in sorted(of_dose.items())
        for way, found in line["ways"].items()
        for answer, text in found["examples"][:1]
    ]
    return "```text\n" + "\n".join(shown) + "\n```"


def pairs(runs: Lines) -> str:
    """R³L with and without reflection, by dose, machine and seed, with the mean difference of each
    dose over seeds and over warm policies, each with the mean of its seeds. If a run was stopped,
    counts only the evaluations that both runs have."""
    rows, differences = [], dict[int, list[tuple[Policy, float]]]()
    for where, dose, _, made in _by_variant([run for run in runs if run["variant"] == "r3l"]):
        for one in sorted(made, key=lambda run: run["seed"]):
            named = {"variant": "no_reflect"} | {
                key: one[key] for key in ("machine", "dose", "seed")
            }
            other = next((run for run in runs if run.items() >= named.items()), None)
            if other is None:
                continue
            shared = min(len(one["evaluations"]), len(other["evaluations"]))
            both = [run | {"evaluations": run["evaluations"][:shared]} for run in (one, other)]
            after = [after_start(run) for run in both]
            apart = (policy_of(one), after[0] - after[1])
            differences.setdefault(dose, []).append(apart)
            cells = [
                f"{_before([run]):.3f} → {mean:.3f}" for run, mean in zip(both, after, strict=True)
            ]
            gain = f"{one['means'].get('group/guidance_gain', 0.0):+.2f}"
            names = [f"{dose:,}", where, str(one["seed"]), gain]
            rows.append((dose, [*names, *cells, f"{after[0] - after[1]:+.3f}"]))
    for dose, found in differences.items():
        by_policy: dict[Policy, list[float]] = {}
        for policy, value in found:
            by_policy.setdefault(policy, []).append(value)
        means = [fmean(values) for values in by_policy.values()]
        count = f"{len(means)} warm policies"
        rows.append((dose, [f"**{dose:,}**", "all", count, "", "", "", listed(means, means, 3)]))
    head = "dose, machine, seed, gain in training, R³L, without reflection, difference"
    return _table(head.split(", "), [row for _, row in sorted(rows, key=lambda row: row[0])])


def training(runs: Lines, units: Sequence[str]) -> str:
    """Held-out success and costs, by machine, dose and variant."""
    rows = []
    for where, dose, variant, made in _by_variant(runs):
        after = _over(made, after_start, 3)
        cells = [where, f"{dose:,}", TITLES[variant], f"{_before(made):.3f}", after]
        rows.append([*cells, _last(made, 3), *_spent(made, units), _seeds(made)])
    head = ["machine", "dose", "variant", "before", "mean after", "last"]
    return _table([*head, *(UNITS[unit] for unit in units), "seeds"], rows)


def workshop(runs: Lines) -> str:
    """Steps to a held-out success, and costs, by machine and variant."""
    rows = []
    for where, _, variant, made in _by_variant(runs):
        cells = [where, TITLES[variant], f"{_before(made):.2f}"]
        cells += [", ".join(_steps_to(run, share) for run in made) for share in (0.5, 0.9)]
        spent = _spent(made, ("tokens", "trained", "cpu", "wall"))
        rows.append([*cells, _last(made, 2), *spent, _seeds(made)])
    head = ["machine", "variant", "before", "steps to 0.5", "to 0.9", "last", *UNITS.values()]
    return _table([*head, "seeds"], rows)


def calculator(runs: Lines) -> str:
    """The evaluations of each seed."""
    steps = [str(step) for step, _ in runs[0]["evaluations"]] if runs else []
    rows = []
    for run in sorted(runs, key=lambda run: run["seed"]):
        successes = [f"{success:.2f}" for _, success in run["evaluations"]]
        rows.append([machine(run), str(run["seed"]), *successes, *_spent([run], ("wall",))])
    return _table(["machine", "seed", *steps, UNITS["wall"]], rows)


def _steps_to(run: dict[str, Any], share: float) -> str:
    """The step of the first evaluation with this success."""
    return next((str(step) for step, success in run["evaluations"] if success >= share), "–")


def _spent(runs: Lines, units: Sequence[str]) -> list[str]:
    """Means over the runs that were not stopped."""
    runs = [run for run in runs if "stopped" not in run]
    return [f"{fmean(run['curve'][unit][-1] or 0 for run in runs):,.0f}" for unit in units]


def _seeds(runs: Lines) -> str:
    return ", ".join(str(seed) for seed in sorted(run["seed"] for run in runs))


def _before(runs: Lines) -> float:
    return fmean(run["evaluations"][0][1] for run in runs)


def _last(runs: Lines, digits: int) -> str:
    return _over(runs, lambda run: float(run["evaluations"][-1][1]), digits)


def _over(runs: Lines, value: Callable[[dict[str, Any]], float], digits: int) -> str:
    policies: dict[Policy, list[float]] = {}
    for run in runs:
        policies.setdefault(policy_of(run), []).append(value(run))
    seeds = [value(run) for run in sorted(runs, key=lambda run: run["seed"])]
    return listed([fmean(values) for values in policies.values()], seeds, digits)


def listed(policies: Sequence[float], values: Sequence[float], digits: int) -> str:
    """The mean of warm policies and half its 95 % t-interval; of fewer than FEWEST the mean of
    `values`, and each of them."""
    count = len(policies)
    if count >= FEWEST:
        half = T_975[min(count - 1, len(T_975)) - 1] * stdev(policies) / count**0.5
        return f"{fmean(policies):.{digits}f} ± {half:.{digits}f}"
    mean = f"{fmean(values):.{digits}f}"
    each = ", ".join(f"{value:.{digits}f}" for value in values)
    return mean if len(values) < 2 else f"{mean} ({each})"


def _where(line: dict[str, Any]) -> tuple[bool, str, int]:
    """The place of a line in a table: processors first."""
    return on_gpu(line), line["machine"], line.get("dose", 0)


def _named(line: dict[str, Any]) -> str:
    return f"dose {line['dose']:,}, {machine(line)}"


def machine(line: dict[str, Any]) -> str:
    """The name of a line's machine, without the words that say nothing."""
    name = str(line["machine"]).removeprefix("NVIDIA ").removesuffix(" Processor")
    return name.replace("(R)", "")


def on_gpu(line: dict[str, Any]) -> bool:
    """Whether a line was made on a GPU."""
    return str(line["machine"]).startswith("NVIDIA")


def phases(runs: Lines) -> str:
    """Seconds of a step by phase, and what it trained on."""
    rows = []
    for where, dose, variant, made in _by_variant(runs):
        steps = fmean(len(run["curve"]["tokens"]) for run in made)
        means = {tag: fmean(run["means"].get(tag, 0.0) for run in made) for tag in made[0]["means"]}
        seconds = [f"{means.get(f'learner/{phase}_s', 0.0):.1f}" for phase in PHASES]
        computed = fmean(run["curve"]["trained"][-1] for run in made) / steps
        sampled = fmean(run["curve"]["tokens"][-1] for run in made) / steps
        aux = means.get("group/aux_samples", 0.0)
        cells = [f"{sampled:,.0f}", f"{computed:,.0f}", f"{aux:.1f}", *seconds]
        names = [where, f"{dose:,}", TITLES[variant]]
        rows.append([*names, *cells, f"{means['learner/wait_s']:.1f}"])
    head = "machine, dose, variant, sampled tokens, trained tokens, auxiliary samples"
    return _table([*head.split(", "), *PHASES, "waiting"], rows)


def rows_of_a_step(runs: Lines) -> str:
    """Rows and computed tokens of a step by the kind of its rows."""
    rows = []
    for where, dose, variant, made in _by_variant(runs):
        cells = [where, f"{dose:,}", TITLES[variant]]
        for kind in (*ROWS, ALL):
            found = [run["rows"].get(kind, {"rows": 0.0, "nodes": 0.0}) for run in made]
            counts = (fmean(one[name] for one in found) for name in ("rows", "nodes"))
            cells.append(" / ".join(f"{count:,.0f}" for count in counts))
        rows.append(cells)
    return _table(["machine", "dose", "variant", *ROWS, ALL], rows)


def policy_of(run: dict[str, Any]) -> Policy:
    """The warm policy that a run begins from."""
    where, dose, seed = run["machine"], run.get("dose", 0), run["seed"]
    together = SHARED.get((where, dose), ())
    alone = on_gpu(run) or run.get("kind", "train") != "train"
    first = 0 if alone else together[0] if seed in together else seed
    return where, dose, first


def after_start(run: dict[str, Any]) -> float:
    """The mean of the held-out successes after the first one."""
    return fmean(success for _, success in run["evaluations"][1:])


def _by_variant(runs: Lines) -> Iterable[tuple[str, int, str, Lines]]:
    """Runs by machine, dose and variant: the warm-up of another machine is another policy."""
    for where in sorted({_where(run) for run in runs}):
        for variant in VARIANTS:
            made = [run for run in runs if (_where(run), run["variant"]) == (where, variant)]
            if made:
                yield machine(made[0]), where[-1], variant, made


def _gain(found: dict[str, float] | None) -> str:
    if not found or not found["pairs"]:
        return "–"
    return f"{found['gain']:+.3f} ± {1.96 * found['se']:.3f} ({found['pairs']})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return "No line yet."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write() -> None:
    """Write the page from the lines."""
    PAGE.write_text(render(read_lines(FILE)), encoding="utf-8")
