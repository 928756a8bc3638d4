"""Settings of the weight journal."""

import pytest

from r3l.config import load
from r3l.errors import UserError


def test_a_journal_is_kept_if_it_has_a_limit_in_versions_or_in_bytes() -> None:
    assert not load(None).learner.journal.on
    assert load(None, ["learner.journal.versions=3"]).learner.journal.on
    assert load(None, ["learner.journal.gib=0.5"]).learner.journal.on
    with pytest.raises(UserError, match=r"learner\.journal\.gib"):
        load(None, ["learner.journal.gib=-1"])
