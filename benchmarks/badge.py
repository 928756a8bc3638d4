"""Draws docs/badge.svg, the outcome of the last whole `make test`: `make badge`.

build/tests.xml, which `make test` writes at its end ─► counts and day ─► one SVG picture
"""

from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import click

ROOT = Path(__file__).parent.parent
RUN, OUT = ROOT / "build" / "tests.xml", ROOT / "docs" / "badge.svg"
GOOD, BAD, GREY = "#2f7d32", "#b3261e", "#4a4a4a"
PER_LETTER, AROUND = 6.4, 12  # pixels


@dataclass(frozen=True)
class Outcome:
    """How many tests passed, failed and were skipped, and the day on which the run began."""

    passed: int
    failed: int
    skipped: int
    day: str


@click.command()
@click.option("--run", type=click.Path(path_type=Path), default=RUN, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), default=OUT, show_default=True)
def main(run: Path, out: Path) -> None:
    """Draw the outcome of a run of the tests from its JUnit file."""
    found = outcome(run)
    out.write_text(picture(found), encoding="utf-8")
    click.echo(f"{out}: {_said(found)}")


def outcome(run: Path) -> Outcome:
    """Reads a JUnit file of pytest. Raises ClickException if it is not there, damaged or empty."""
    try:
        suites = list(ElementTree.parse(run).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError) as error:
        raise click.ClickException(f"{run}: no outcome of a run ({error}); run make test") from None
    tests, skipped = (sum(int(s.get(name, 0)) for s in suites) for name in ("tests", "skipped"))
    failed = sum(int(s.get(name, 0)) for s in suites for name in ("failures", "errors"))
    if not tests:
        raise click.ClickException(f"{run}: holds no test; run make test")
    return Outcome(tests - failed - skipped, failed, skipped, suites[0].get("timestamp", "")[:10])


def picture(found: Outcome) -> str:
    """Returns the badge: what it is on grey, and the outcome on green or red."""
    shown = _said(found)
    left, right = _width("tests"), _width(shown)
    full = f"make test: {found.passed:,} passed, {found.failed:,} failed, {found.skipped:,} skipped"
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">
<title>{full}, {found.day}</title>
<clipPath id="round"><rect width="{left + right}" height="20" rx="3"/></clipPath>
<g clip-path="url(#round)">
<rect width="{left}" height="20" fill="{GREY}"/>
<rect x="{left}" width="{right}" height="20" fill="{BAD if found.failed else GOOD}"/>
</g>
<g fill="#fff" font-family="Verdana, DejaVu Sans, sans-serif" font-size="11" text-anchor="middle">
<text x="{left / 2}" y="14" textLength="{left - AROUND}">tests</text>
<text x="{left + right / 2}" y="14" textLength="{right - AROUND}">{shown}</text>
</g>
</svg>
"""


def _said(found: Outcome) -> str:
    """Returns the outcome in a few words. A failure is never left out."""
    failed = f"{found.failed:,} failed, " if found.failed else ""
    return f"{failed}{found.passed:,} passed, {found.day}"


def _width(text: str) -> int:
    """Returns how wide a text and its margins are, in pixels."""
    return round(len(text) * PER_LETTER) + AROUND


if __name__ == "__main__":
    main()
