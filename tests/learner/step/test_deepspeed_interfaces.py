"""The installed DeepSpeed has what the learner uses; one that lacks a name is refused."""

import pytest

from learner.step.deepspeed_interfaces import KNOWN, check_deepspeed
from r3l.errors import UserError


def test_the_installed_one_is_accepted_and_one_that_lacks_a_method_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_deepspeed()
    monkeypatch.delattr("deepspeed.runtime.engine.DeepSpeedEngine.was_step_applied")
    with pytest.raises(UserError, match=rf"^deepspeed {KNOWN}: lacks .*was_step_applied, which"):
        check_deepspeed()
