"""How well answers are judged: real reference answers in other notations, and wrong ones.

    python -m benchmarks.math_answers verdicts gsm8k_test.jsonl math500.jsonl --every 5
    python -m benchmarks.math_answers mutations math500.jsonl --count 10000

`verdicts`: right variants that are judged wrong (false no), and wrong ones that are judged right
(false yes), next to math-verify alone and to the graders of verl and lm-eval if they are installed:
`pip install --no-deps verl lm-eval antlr4-python3-runtime==4.11` in an environment of its own.
`mutations`: random edits of reference answers; every one must get a verdict.
"""

import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import click

from envs.questions.datasets import load
from envs.questions.math_answer import compare, number, plain, split
from envs.questions.verifier import Verifier

Judge = Callable[[str, str], str]
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
@click.argument("part", type=click.Choice(["verdicts", "mutations"]))
@click.argument("files", nargs=-1, required=True)
@click.option("--every", default=1, show_default=True, help="use every n-th problem")
@click.option("--count", default=10_000, show_default=True, help="mutations, of all files together")
@click.option("--seed", default=0, show_default=True)
def main(part: str, files: tuple[str, ...], every: int, count: int, seed: int) -> None:
    """Print verdicts and latencies."""
    if part == "verdicts":
        for file in files:
            golds = [problem.answer for problem in load("math", "FILE", file)][::every]
            for name, judge in (("r3l", compare), ("math-verify alone", _math_verify), *_peers()):
                _count(file, name, judge, golds)
        return
    verifier = Verifier()
    verifier.check("1", "1")
    for file in files:
        golds = [problem.answer for problem in load("math", "FILE", file)][::every]
        rng = random.Random(seed)
        pairs = [(g, mutated(g, rng)) for g in rng.choices(golds, k=count // len(files))]
        _judge(verifier, file, pairs)
    verifier.close()


def _peers() -> Iterator[tuple[str, Judge]]:
    """The graders of other projects that are installed."""
    if verl := _module("verl", "utils/reward_score/math_reward.py"):
        yield (
            "verl math_reward",
            lambda gold, answer: (
                "correct" if verl.compute_score(rf"\boxed{{{answer}}}", gold) else "wrong"
            ),
        )
    if minerva := _module("lm_eval", "tasks/minerva_math/utils.py"):
        normal = minerva.normalize_final_answer
        yield (
            "lm-eval minerva_math",
            lambda gold, answer: (
                "correct" if minerva.is_equiv(normal(answer), normal(gold)) else "wrong"
            ),
        )


def _module(package: str, file: str) -> Any:
    """Imports one file of a package without the package itself; None if it is not installed."""
    found = find_spec(package)
    if found is None or found.origin is None:
        return None
    spec = spec_from_file_location(f"{package}_grader", Path(found.origin).parent / file)
    assert spec is not None and spec.loader is not None  # a .py file has both
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _count(file: str, name: str, judge: Judge, golds: list[str]) -> None:
    right = [(g, v) for g in golds for v in (*notations(g), *other_forms(g))]
    wrong = [(g, v) for g in golds for v in wrong_answers(g)]
    no = [pair for pair in right if judge(*pair) != "correct"]
    yes = [pair for pair in wrong if judge(*pair) == "correct"]
    click.echo(
        f"{file}, {name}: false no {len(no)} of {len(right)} ({len(no) / len(right):.4f}), "
        f"false yes {len(yes)} of {len(wrong)} ({len(yes) / len(wrong):.4f})"
    )
    for kind, pairs in (("no", no), ("yes", yes)):
        for example in pairs[:: max(1, len(pairs) // 6)]:
            click.echo(f"  false {kind}: {example}")


def _math_verify(gold: str, answer: str) -> str:
    """math-verify as its documentation uses it: the reference and the answer as LaTeX."""
    from math_verify import parse, verify

    read = [parse(f"${text}$", parsing_timeout=None) for text in (gold, answer)]
    return "correct" if verify(*read, timeout_seconds=None) else "wrong"


def _judge(verifier: Verifier, file: str, pairs: list[tuple[str, str]]) -> None:
    def check(pair: tuple[str, str]) -> tuple[str, float]:
        began = time.perf_counter()
        verdict = verifier.check(*pair)
        return verdict, (time.perf_counter() - began) * 1e3

    checked = [check(pair) for pair in pairs]
    verdicts = Counter(verdict for verdict, _ in checked)
    took = sorted(milliseconds for _, milliseconds in checked)
    click.echo(f"{file}: {len(pairs)} answers, {dict(verdicts)}")
    click.echo(
        f"  correct {verdicts['correct'] / len(pairs):.4f}; ms median "
        f"{statistics.median(took):.2f}, p99 {took[len(took) * 99 // 100]:.0f}, max {took[-1]:.0f}"
    )


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


def other_forms(gold: str) -> Iterator[str]:
    """The same value in a form that a parser must understand."""
    value, parts = number(plain(gold)), split(plain(gold))
    if value is not None and "%" not in gold:
        yield from (rf"\frac{{{value.numerator * 3}}}{{{value.denominator * 3}}}", f"x={gold}")
        if value.denominator > 1 and abs(value) > 1:
            whole, rest = divmod(abs(value.numerator), value.denominator)
            sign = "-" if value < 0 else ""
            yield from (f"{sign}{whole} {rest}/{value.denominator}",
                        rf"{sign}{whole}\frac{{{rest}}}{{{value.denominator}}}")  # fmt: skip
        if (100 * value).denominator == 1:
            yield f"{float(value):.2f}"
    if parts.kind in ("list", "set") and r"\pm" not in gold and "and" not in gold:
        yield ", ".join(reversed(parts.members))
        yield r" \text{ and } ".join(parts.members)
    if (
        parts.kind == "leaf"
        and re.fullmatch(r"[\w\\{} +*/^-]*\d[\w\\{}]*", gold)
        and not ("_" in gold or "text" in gold or "mbox" in gold)
    ):
        yield from (f"({gold})", f"y = {gold}")


def wrong_answers(gold: str) -> Iterator[str]:
    """Answers that a policy may be tempted to give, none of which is the reference."""
    value, parts = number(plain(gold)), split(plain(gold))
    yield from (f"not {gold}", rf"\text{{not }} {gold}", rf"\neq {gold}", f"{gold} or {gold}1")
    yield from (f"any number except {gold}", f"I do not know, maybe {gold}", f"{gold}?")
    yield from (rf"\approx {gold}", f"0, 1, 2, 3, 4, 5, 6, {gold}", f"{gold}, 777", f"777, {gold}")
    yield from (rf"777 \text{{ or }} {gold}", f"x=777 or x={gold}", f"{gold} = 777", f"< {gold}")
    yield from (f"{gold} + 1", "", "?", r"\text{unknown}", f"[{gold}, 777]")
    if value == 0:
        yield from ("1", "-1", "0.0001", r"\infty", "0 + 1", "0 or 1")
    elif value is not None:
        digits = str(value.numerator)
        yield rf"{gold} \cdot 7"
        yield from (f"{gold} 2/3", f"{gold} {abs(value.numerator) + 3}/2", f"{gold}_7", f"{gold}e1")
        yield from (f"{gold} million", f"{gold} hundred", f"3 apples and {gold} pears", f"{gold}x")
        yield from (f"{gold} dozen", f"{gold} z", f"less than {gold}", f"{gold} or more")
        yield from (str(value + 1), str(value - 1), f"{digits}7", rf"\sqrt{{{gold}}} + 0.5")
        yield from (
            str(value * (1 + Fraction(1, 10**7))),
            f"{gold} i",
            rf"{gold} \pi",
            f"{gold}!+1",
        )
        yield from (f"-({gold})", f"{-value}", rf"\pm {gold}", f"{value * 3}", f"1e-9*{gold}")
        if abs(value) not in (0, 1):
            yield from (str(1 / value), f"({gold})^2", rf"{gold}^{{{gold}}}")
        if len(digits.lstrip("-")) > 1:
            yield from (", ".join(digits), " ".join(digits), digits[:-1])
    if len(parts.members) > 1 and not parts.kind.startswith("rows"):
        yield from (", ".join(parts.members[:-1]), ", ".join([*parts.members, parts.members[0]]))
        yield ", ".join([*parts.members[:-1], "777"])
    if len(parts.kind) == 2 and len(set(parts.members)) > 1:
        begin, end = parts.kind[0], parts.kind[1]
        yield f"{begin}{', '.join(reversed(parts.members))}{end}"
        yield f"{'[' if begin == '(' else '('}{', '.join(parts.members)}{end}"
    if re.fullmatch(r"\\text\{\w+\}|\w{3,}", gold) and value is None:
        yield from (f"{gold} or west", f"neither {gold}", f"un{gold}", gold[:-2])


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
