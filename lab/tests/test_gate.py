"""The gate on the table policy: gains by the kind of guidance, and the page on disk."""

from pathlib import Path

import pytest

from lab import gate
from lab.gate import run, with_retries, without
from lab.idealised import WORLDS, Table
from r3l.algorithms.guidance_gain import FLOOR, estimate

PAGE = Path(__file__).parents[2] / "docs" / "gate.md"


@pytest.mark.parametrize(("guidance", "sign"), [("useful", 1), ("useless", 0), ("harmful", -1)])
def test_the_gain_has_the_sign_of_the_guidance(guidance: gate.Guidance, sign: int) -> None:
    table = Table(WORLDS[0], seed=1)
    lessons = [with_retries(table, guidance) for _ in range(1500)]
    gain, error = estimate([lesson.gain for lesson in lessons])
    assert gain * sign > 5 * error if sign else abs(gain) < 3 * error
    assert all(8 <= lesson.tokens <= 12 for lesson in lessons) and without(table).tokens == 8


def test_harmful_guidance_is_left_out_down_to_the_floor() -> None:
    steps, _, chances = run(WORLDS[2], "harmful", "measured", seed=0)
    assert len(chances) == steps and chances[0] == 1.0 and chances[-1] < 2 * FLOOR


@pytest.mark.nightly
def test_the_page_on_disk_is_the_one_made_here(capsys: pytest.CaptureFixture[str]) -> None:
    gate.main([], standalone_mode=False)
    assert capsys.readouterr().out == PAGE.read_text()
