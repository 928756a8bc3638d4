"""How well answers are judged: real reference answers in other notations, and mutilated ones.

    python -m benchmarks.math_answers notations math500.jsonl
    python -m benchmarks.math_answers mutations math500.jsonl --count 10000

`notations`: share of variants, all of them right, that are judged correct. `mutations`: random
edits of reference answers; what counts is that every one gets a verdict.
"""

from __future__ import annotations

import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import click

from envs.questions.datasets import load
from envs.questions.verifier import Verifier

WHOLE = re.compile(r"-?\d+")
PIECES = [
    *"0123456789+-*/^_{}()[]$\\,.% =<>|!&~",
    "\\frac",
    "\\sqrt",
    "^{",
    "\\left(",
    "\\text{",
    "π",
]


@click.command()
@click.argument("part", type=click.Choice(["notations", "mutations"]))
@click.argument("files", nargs=-1, required=True)
@click.option("--every", default=1, show_default=True, help="use every n-th problem")
@click.option("--count", default=10_000, show_default=True, help="mutations, of all files together")
@click.option("--seed", default=0, show_default=True)
@click.option("--workers", default=2, show_default=True, help="answers judged at a time")
def main(
    part: str, files: tuple[str, ...], every: int, count: int, seed: int, workers: int
) -> None:
    """Print verdicts, worker failures and latencies."""
    verifier = Verifier(workers=workers)
    verifier.check("1", "1")
    for file in files:
        golds = [problem.answer for problem in load("math", "FILE", file)][::every]
        rng = random.Random(seed)
        if part == "notations":
            pairs = [(g, v) for g in golds for v in notations(g)]
        else:
            pairs = [(g, mutated(g, rng)) for g in rng.choices(golds, k=count // len(files))]
        _judge(verifier, file, pairs, workers=workers, show_wrong=part == "notations")
    verifier.close()


def _judge(
    verifier: Verifier,
    file: str,
    pairs: list[tuple[str, str]],
    *,
    workers: int,
    show_wrong: bool,
) -> None:
    before = Counter(verifier.counts)

    def check(pair: tuple[str, str]) -> tuple[str, float]:
        began = time.perf_counter()
        verdict = verifier.check(*pair)
        return verdict, (time.perf_counter() - began) * 1e3

    with ThreadPoolExecutor(workers) as threads:
        checked = list(threads.map(check, pairs))
    verdicts = Counter(verdict for verdict, _ in checked)
    took = sorted(milliseconds for _, milliseconds in checked)
    wrong = [(*p, v) for p, (v, _) in zip(pairs, checked, strict=True) if v != "correct"]
    lost = {name: verifier.counts[name] - before[name] for name in ("timeout", "crash")}
    click.echo(f"{file}: {len(pairs)} answers, {dict(verdicts)}, {lost}")
    click.echo(
        f"  correct {verdicts['correct'] / len(pairs):.4f}; ms median "
        f"{statistics.median(took):.2f}, p99 {took[len(took) * 99 // 100]:.0f}, max {took[-1]:.0f}"
    )
    for example in wrong[:8] if show_wrong else ():
        click.echo(f"  {example}")


def notations(gold: str) -> Iterator[str]:
    """The same answer written in other ways."""
    yield gold
    yield from (f"${gold}$", f"\\({gold}\\)", f"\\[{gold}\\]", rf"\boxed{{{gold}}}")
    yield from (f"  {gold} ", f"{gold}.", rf"\displaystyle {gold}")
    yield gold.replace(r"\frac", r"\dfrac")
    yield gold.replace(r"\frac", r"\tfrac")
    yield re.sub(r"\\frac\{(\d)\}\{(\d)\}", r"\\frac\1\2", gold)
    yield gold.replace(r"\left", "").replace(r"\right", "")
    yield gold.replace(r"\text{", r"\mathrm{").replace(r"^\circ", "")
    yield re.sub(r"(?<![a-zA-Z]) | (?![a-zA-Z])", "", gold)
    if re.fullmatch(r"-?\\frac\{-?\d+\}\{\d+\}", gold):
        yield re.sub(r"\\frac\{(-?\d+)\}\{(\d+)\}", r"\1/\2", gold)
    if WHOLE.fullmatch(gold):
        number = int(gold)
        yield from (f"{gold}.0", f"{gold}.00", f"x = {gold}", f"{gold}/1", f"{number:,}")
        yield from (rf"\${gold}", f"${gold}", f"{gold} dollars", rf"{gold}\text{{ apples}}")
        yield from (f"{number:,}".replace(",", r"\,"), f"{number:,}".replace(",", "{,}"))
        yield from (rf"\text{{{gold}}}", f"**{gold}**", f"{number:e}", rf"\frac{{{gold}}}{{1}}")


def mutated(gold: str, rng: random.Random) -> str:
    """A reference answer after one to eight random edits."""
    text = list(gold)
    for _ in range(rng.randint(1, 8)):
        at = rng.randrange(len(text) + 1)
        match rng.randrange(4):
            case 0:
                text.insert(at, rng.choice(PIECES))
            case 1:
                del text[at : at + rng.randint(1, 3)]
            case 2:
                text[at:at] = text[: rng.randint(1, 12)]
            case 3:
                text[at : at + 1] = rng.choice(PIECES)
    return "".join(text)


if __name__ == "__main__":
    main()
