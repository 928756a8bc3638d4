"""How many attempts keep an engine busy, and how idle it is."""

import pytest

from actors.utilization import CacheLoad, Idleness, Occupancy


def filled(target: int, group: int, share: float) -> tuple[int, float]:
    """(live attempts, requests running) after a minute of an environment in which an attempt is
    a request for `share` of the time."""
    occupancy, live = Occupancy(target), 0
    for _ in range(600):
        if occupancy.admits(live, group):
            live += group
        occupancy.observe(round(live * share), live)
    return live, live * share


def test_a_quick_environment_takes_as_many_attempts_as_requests() -> None:
    live, running = filled(target=48, group=4, share=1.0)
    assert live == running == 48


def test_a_slow_environment_takes_more_attempts_to_keep_the_engine_busy() -> None:
    live, running = filled(target=48, group=4, share=0.5)
    assert live > 90 and 44 <= running <= 48


def test_the_number_of_attempts_is_bounded_however_slow_the_environment() -> None:
    live, _ = filled(target=48, group=4, share=0.0)
    assert live <= 8 * 48


def test_a_group_larger_than_the_target_is_still_begun() -> None:
    assert filled(target=2, group=4, share=1.0)[0] == 4


def test_an_engine_is_idle_only_while_a_lease_is_awaited_and_requests_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("actors.utilization.time.monotonic", lambda: now)
    idle = Idleness()
    idle.observe(1.0)
    now = 1.0  # a second in which everything is missing, but no lease is waited for
    with idle:
        idle.observe(0.5)
        now = 3.0
        idle.observe(0.0)
        now = 4.0
    assert idle.share() == pytest.approx(0.25)
    assert idle.share() == 0.0


def test_preemptions_are_taken_once() -> None:
    load = CacheLoad(preemptions=3)
    assert load.take_preemptions() == 3
    load.preemptions += 2
    assert (load.take_preemptions(), load.take_preemptions()) == (2, 0)
