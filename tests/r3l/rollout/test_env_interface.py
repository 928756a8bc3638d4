"""What an environment may declare about itself."""

from dataclasses import replace

import pytest

from r3l.errors import UserError
from tests.r3l.fakes import Corridor


@pytest.mark.parametrize("threshold", [0.0, -110.0, float("nan"), float("inf")])
def test_a_success_threshold_that_is_not_positive_is_refused(
    threshold: float,
) -> None:
    with pytest.raises(UserError, match="must be positive"):
        replace(Corridor().spec, success_threshold=threshold)
