"""How many attempts keep an engine busy."""

from actors.utilization import Occupancy


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
