"""Stamps of weights on attempts."""

from r3l.weights.fingerprints import agree, digest_of, fingerprint
from r3l.weights.manifest import Layout, Manifest


def test_a_stamp_names_the_published_set_whoever_published_it() -> None:
    layout = Layout.of([("a", "bfloat16", (3,))])
    first = fingerprint("e1", Manifest("p", 1, layout, (7,)))
    assert first.startswith("e1/") and len(digest_of(first)) == 32
    assert fingerprint("e1", Manifest("q", 2, layout, (7,), (1, 1))) == first
    assert fingerprint("e1", Manifest("p", 1, layout, (8,))) != first
    assert fingerprint("e1", Manifest("p", 1, Layout.of([("b", "bfloat16", (3,))]), (7,))) != first
    assert digest_of("e1") == ""


def test_stamps_contradict_each_other_if_a_part_that_both_have_differs() -> None:
    assert agree("e1/s", "e1/s") and agree("e1", "e1/s") and agree("e1/s", "e1")
    assert not agree("e1/s", "e2/s")
    assert not agree("e1/s", "e1/t")
