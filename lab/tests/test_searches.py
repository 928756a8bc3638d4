"""Searches over sampled text: bounded time for 100,000 characters of any pattern."""

import time

import pytest

from lab import searches


@pytest.mark.nightly
def test_every_search_takes_a_bounded_time() -> None:
    with pytest.raises(SystemExit) as ended:
        searches.main([])
    assert not ended.value.code


def test_a_slow_search_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searches, "SOME", 1)
    monkeypatch.setattr(searches, "TOKENS", ["a"])
    monkeypatch.setattr(searches, "SEARCHES", {"slow": lambda text: burn(0.11)})
    with pytest.raises(SystemExit) as ended:
        searches.main([])
    assert ended.value.code


def burn(seconds: float) -> None:
    """Use processor time."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
