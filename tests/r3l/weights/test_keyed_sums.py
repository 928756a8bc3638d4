"""Keyed checksums of messages."""

from r3l.weights.keyed_sums import SUM_BYTES, is_genuine, keyed_sum, new_key


def test_a_message_is_genuine_only_as_it_was_and_with_its_key() -> None:
    key, frames = new_key(), [b"head", memoryview(b"body")]
    claimed = keyed_sum(key, frames)
    assert len(claimed) == SUM_BYTES and is_genuine(key, frames, claimed)
    others = ([b"head", b"bodY"], [b"headb", b"ody"], [b"head"], [b"body", b"head"], [])
    assert not any(is_genuine(key, other, claimed) for other in others)
    assert not is_genuine(new_key(), frames, claimed)
    assert not is_genuine(key, frames, claimed[:-1]) and not is_genuine(key, frames, b"")
