"""What a policy is asked for."""

from r3l.rollout.policy_interface import SampleParams


def test_a_response_is_drawn_from_the_whole_distribution_unless_asked_otherwise() -> None:
    params = SampleParams(max_tokens=5)
    assert (params.temperature, params.json_schema, params.structural_tag) == (1.0, None, None)
    assert (params.stop, params.seed) == ((), None)
