"""The badge of the last run of the tests says what that run came to."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from benchmarks.badge import BAD, GOOD, Outcome, main, outcome, picture

SUITE = (
    '<testsuites><testsuite name="pytest" tests="{0}" failures="{1}" errors="{2}" skipped="{3}" '
    'time="9.5" timestamp="2026-11-30T16:00:00.1+00:00"></testsuite></testsuites>'
)


def written(folder: Path, *counts: int) -> Path:
    (folder / "tests.xml").write_text(SUITE.format(*counts))
    return folder / "tests.xml"


def test_a_failure_and_an_error_are_counted_and_neither_they_nor_skipped_tests_pass(tmp_path):
    found = outcome(written(tmp_path, 5000, 2, 1, 30))
    assert found == Outcome(passed=4967, failed=3, skipped=30, day="2026-11-30")


def test_the_badge_is_green_only_if_nothing_failed_and_names_the_day():
    good, bad = (picture(Outcome(4970, failed, 30, "2026-11-30")) for failed in (0, 3))
    assert GOOD in good and BAD not in good and "4,970 passed, 2026-11-30" in good
    assert BAD in bad and GOOD not in bad and ">3 failed, 4,970 passed, 2026-11-30<" in bad
    for text in (good, bad):
        assert "30 skipped" in (ElementTree.fromstring(text)[0].text or "")


def test_what_pytest_writes_is_read(tmp_path):
    (tmp_path / "test_three.py").write_text(
        "import pytest\ndef test_a(): pass\ndef test_b(): assert 0\n"
        "@pytest.mark.skip\ndef test_c(): pass\n"
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--junitxml=tests.xml"]
    subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    found = outcome(tmp_path / "tests.xml")
    assert (found.passed, found.failed, found.skipped) == (1, 1, 1)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", found.day)


@pytest.mark.parametrize("text", [None, "", "<testsuites><testsuite", SUITE.format(0, 0, 0, 0)])
def test_without_the_outcome_of_a_run_there_is_no_badge(tmp_path, text):
    if text is not None:
        (tmp_path / "tests.xml").write_text(text)
    at = ["--run", str(tmp_path / "tests.xml"), "--out", str(tmp_path / "badge.svg")]
    result = CliRunner().invoke(main, at)
    assert result.exit_code == 1 and "run make test" in result.output
    assert not (tmp_path / "badge.svg").exists()


def test_the_badge_is_written_and_said(tmp_path):
    at = ["--run", str(written(tmp_path, 12, 0, 0, 2)), "--out", str(tmp_path / "badge.svg")]
    result = CliRunner().invoke(main, at)
    assert result.exit_code == 0 and "10 passed, 2026-11-30" in result.output
    assert "10 passed" in (tmp_path / "badge.svg").read_text()
