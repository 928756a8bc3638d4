"""What no answer could honour is refused by name."""

import pytest

from actors.gateway.agent_request import Refused, bad, refuse_what_is_not_offered


def test_only_what_is_asked_for_is_refused() -> None:
    refuse_what_is_not_offered({"audio": None, "logit_bias": {}}, ("audio", "logit_bias"))
    with pytest.raises(Refused, match="audio"):
        refuse_what_is_not_offered({"audio": {"voice": "x"}}, ("audio",))
    assert bad("no").status == 400
