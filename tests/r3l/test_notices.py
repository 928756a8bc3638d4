"""Lines for people in the log of a process."""

import pytest

from r3l import notices
from r3l.notices import LONGEST, NOTICE_LINE, notice, notice_again


def test_a_notice_is_one_line_of_the_log_that_starts_with_its_mark(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notice("the disk\n  is full")
    notice("x" * 1000)
    first, second = capsys.readouterr().err.splitlines()
    assert first == f"{NOTICE_LINE} the disk is full"
    assert len(second) == len(NOTICE_LINE) + 1 + LONGEST and second.endswith("x…")


def test_trouble_that_is_met_at_every_try_is_said_once_a_minute(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_said", {})
    assert [notice_again(kind, kind) for kind in ("disk", "disk", "memory")] == [True, False, True]
    monkeypatch.setattr(notices, "AGAIN_S", 0.0)
    notice_again("disk", "disk again")
    said = [line.removeprefix(f"{NOTICE_LINE} ") for line in capsys.readouterr().err.splitlines()]
    assert said == ["disk", "memory", "disk again"]
