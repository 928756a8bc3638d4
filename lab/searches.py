"""Times every search over sampled text on 100,000 characters of repeated tokens.

    python -m lab.searches          exits with 1 if one takes LIMIT_S or longer

The patterns are all TOKENS and SOME random pairs and triples of them, each after beginnings that
open what a search looks for.
"""

import itertools
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress

import click

from envs.adapters.action_tags import action_in
from envs.questions.arithmetic import evaluate
from envs.questions.final_answer import boxed, stated, tagged
from envs.questions.math_answer import compare
from envs.questions.reasoning_gym import harmless
from lab.dry_run import DRY_RUN
from r3l.rollout import reflection

CHARACTERS = 100_000
LIMIT_S = 0.1  # processor time: twice what a quiet core needs
SOME = 100
WORDS = (
    '{ } [ ] ( ) {" " \\ , : . - _ ** #### 1 a <answer> </answer> <action> </action> \\boxed{'
    " \\fbox{ Answer: the answer is"
)
TOKENS = [*WORDS.split(), "\n", "\r", "\t", " ", "\u2028", '{"trajectory_outcome":1,', "1,000"]
BEGINNINGS = ("", "<action>a", "<answer>", "Answer: ", '{"', r"\boxed{")
SEARCHES: dict[str, Callable[[str], object]] = {
    "boxed": boxed,
    "tagged": tagged,
    "stated": stated,
    "action_in": action_in,
    "reflection": lambda text: reflection.parse(text, 5),
    "arithmetic": evaluate,
    "math answer": lambda text: compare("1", text),
    "reasoning answer": lambda text: harmless(text[:4000]),
}


def slowest(search: Callable[[str], object], patterns: list[str]) -> tuple[float, str]:
    """Returns the longest time of a search, in seconds, and the text that took it."""
    worst = 0.0, ""
    for begin, pattern in itertools.product(BEGINNINGS, patterns):
        text = begin + pattern * (CHARACTERS // len(pattern)) + "b"
        began = time.process_time()
        with suppress(ValueError):  # no answer, no reflection
            search(text)
        worst = max(worst, (time.process_time() - began, text[:40]))
    return worst


@click.command()
@DRY_RUN
def main(dry_run: bool) -> None:
    """Print the slowest text of each search."""
    longer = [*itertools.product(TOKENS, repeat=2), *itertools.product(TOKENS, repeat=3)]
    some = [*itertools.product(TOKENS), *random.Random(0).sample(longer, SOME)]
    patterns = ["".join(pattern) for pattern in some]
    if dry_run:
        texts = len(BEGINNINGS) * len(patterns)
        sys.stdout.write(f"{texts} texts of {CHARACTERS} characters: {', '.join(SEARCHES)}\n")
        return
    found = {name: slowest(search, patterns) for name, search in SEARCHES.items()}
    for name, (seconds, text) in found.items():
        sys.stdout.write(f"{name:<18}{seconds * 1000:8.1f} ms  {text!r}\n")
    sys.exit(any(seconds >= LIMIT_S for seconds, _ in found.values()))


if __name__ == "__main__":
    main()
