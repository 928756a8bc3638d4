"""The trust meter: literal steps, and the role it is measured on."""

from learner.offline.trust import TrustMeter


def measured(ess: float, kl: float = 0.0, role: str = "") -> dict[str, float]:
    return {f"learner/behaviour_ess{role}": ess, f"learner/behaviour_kl{role}": kl}


def test_trust_is_lost_from_the_first_of_three_steps_in_a_row_beyond_a_limit() -> None:
    meter = TrustMeter()
    values = [0.9, 0.2, 0.5, 0.29, 0.2, 0.1, 0.1, 0.9]
    lost = [meter.check(step, measured(ess)) for step, ess in enumerate(values, 1)]
    assert lost == [False] * 5 + [True] + [False] * 2 and meter.lost_at == 4
    assert "from step 4 on the data no longer support" in meter.verdict()
    assert (meter.first_ess, meter.ess, meter.steps) == (0.9, 0.9, 8)


def test_a_large_kl_loses_trust_too_and_not_a_number_is_beyond_every_limit() -> None:
    for bad in (measured(0.9, 0.6), measured(float("nan"))):
        meter = TrustMeter()
        assert [meter.check(step, bad) for step in (1, 2, 3)] == [False, False, True]


def test_data_that_support_every_step_say_so() -> None:
    meter = TrustMeter()
    for step in range(9):
        meter.check(step, measured(0.31, 0.49))
    assert meter.lost_at == -1 and meter.verdict().startswith("trust: the data support every step")
    assert meter.facts()["lost_at"] == -1 and meter.facts()["ess"] == 0.31


def test_base_attempts_decide_if_there_are_any_and_a_step_without_tokens_says_nothing() -> None:
    meter = TrustMeter()
    for step in range(5):
        meter.check(step, measured(0.01) | measured(0.8, role="_base"))
        meter.check(step, {})
    assert meter.lost_at == -1 and meter.ess == 0.8 and meter.steps == 5
