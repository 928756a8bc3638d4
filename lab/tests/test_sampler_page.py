"""The page of the study of samplers."""

import pytest

from lab.sampler_page import Run, reached, read, render
from r3l.errors import UserError


def step(replayed, success=0.0, spread=0.5):
    count = len(replayed)
    return {
        "success": success,
        "replayed": replayed,
        "age": [2] * count,
        "spread": [spread] * count,
    }


def test_the_page_says_who_needs_how_many_steps_and_in_which_seeds_the_samplers_differ():
    def run(sampler, seed, count, group, spread=0.5):
        return Run(sampler, seed, [step([group], 1.0, spread)] * count)

    page = render([
        run("fifo", 0, 8, "g1", 0.0), run("uniform", 0, 6, "g2"), run("prioritised", 0, 4, "g3"),
        run("fifo", 1, 10, "g1", 0.0), run("uniform", 1, 5, "g1"), run("prioritised", 1, 5, "g2"),
        run("fifo", 2, 9, "g1", 0.0),
    ])  # fmt: skip
    assert "| `fifo` | 3 | 9.0 | 1.0 | 3 | 47.2 | 0.00 | 0.26 | 2.0 | 1 | 10 |" in page
    assert "over those of `fifo`: `uniform` 0.61, " in page
    assert "seeds:\n`uniform`, `prioritised`." in page
    assert "over the seeds 0, 1 of" in page and "groups in the seeds 0:" in page
    assert "| 1 | 10 | 5 | 5 |" in page and "| 2 | 9 | – | – |" in page
    assert "seed 1: `uniform` and `prioritised`." in page
    assert "async def train" in page and "{" not in page.split("```python")[0]


def test_a_sampler_is_named_if_it_is_faster_in_every_seed():
    counts = {"fifo": (40, 44, 42), "uniform": (39, 45, 42), "prioritised": (30, 33, 32)}
    page = render([
        Run(name, seed, [step([name], 1.0)] * count)
        for name, own in counts.items()
        for seed, count in enumerate(own)
    ])  # fmt: skip
    assert "in every one of these seeds:\n`prioritised`.\n" in page


def test_half_of_five_steps_must_succeed():
    assert not reached([step([], 1.0)] * 4)
    assert reached([step([], 0.0)] * 9 + [step([], 0.5)] * 5)
    assert not reached([step([], 1.0)] * 9 + [step([], 0.4)] * 5)


def test_a_line_that_is_no_run_is_named(tmp_path):
    file = tmp_path / "lines"
    assert read(file) == []
    file.write_text('{"sampler": "fifo", "seed": 0, "steps": []}\n{"seed": 1}\n')
    with pytest.raises(UserError, match="lines:2: no line of a run"):
        read(file)
