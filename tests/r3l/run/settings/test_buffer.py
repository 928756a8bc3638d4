"""Settings of the buffer service."""

import pytest

from r3l.errors import UserError
from r3l.run.settings.buffer import BufferConfig, RetentionConfig


def test_retention_without_a_limit_keeps_every_group() -> None:
    assert RetentionConfig().unlimited
    assert not RetentionConfig(groups=0).unlimited and not RetentionConfig(hours=1).unlimited


def test_results_that_are_kept_fit_into_the_map() -> None:
    assert BufferConfig(map_gib=2, retention=RetentionConfig(gib=2)).map_gib == 2
    with pytest.raises(UserError, match="raise map_gib or lower"):
        BufferConfig(map_gib=1, retention=RetentionConfig(gib=2))


def test_clients_wait_longer_for_a_reply_than_until_the_service_is_started_again() -> None:
    assert BufferConfig(reply_s=10).patience_s == 20
