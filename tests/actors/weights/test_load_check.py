"""Loads compared with what was published."""

import json

import pytest

from actors.weights.load_check import LoadCheck
from r3l.errors import EngineSick
from r3l.weights.manifest import Layout, Manifest

LAYOUT = Layout.of([("w", "bfloat16", (4,))])
PUBLISHED = Manifest("o", 7, LAYOUT, (0,), (30, 500))


def report(*missing: str, **sums: tuple[int, int]) -> str:
    return json.dumps({"missing": missing, "sums": sums or None})


def cause(check: LoadCheck, *reports: str) -> str:
    """The symptom that the check finds, "" for none."""
    try:
        check.check(PUBLISHED, reports)
    except EngineSick as sick:
        return sick.cause
    return ""


def test_an_engine_whose_sums_are_the_publishers_passes_and_another_is_sick() -> None:
    check = LoadCheck()
    assert cause(check, report(a=(10, 100), b=(20, 400))) == "" and check.fitted
    for _ in range(3):
        assert cause(check, report(a=(10, 100), b=(20, 401))) == "weights_differ"
        assert cause(check, report(a=(11, 100), b=(20, 400))) == "weights_differ"
    assert cause(check, report(a=(10, 100), b=(20, 400))) == ""


def test_a_load_that_leaves_parameters_without_weights_is_partial_every_time() -> None:
    check = LoadCheck()
    for _ in range(3):
        with pytest.raises(EngineSick, match=r"7 are partial: 2 .*a\.x"):
            check.check(PUBLISHED, [report("b.y"), report("a.x", "b.y", w=(30, 500))])
    assert cause(check, report("a.x", w=(30, 500))) == "weights_partial"


def test_shares_of_several_workers_add_up_and_what_all_have_alike_counts_once() -> None:
    one, other = report(norm=(4, 40), w=(6, 60)), report(norm=(4, 40), w=(20, 400))
    assert cause(LoadCheck(), one, other) == ""
    assert cause(LoadCheck(), one, one) == "weights_differ"


def test_a_model_that_cannot_be_compared_is_not_held_against_its_engines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    check = LoadCheck()
    assert cause(check, report(w=(1, 1))) == "weights_differ"  # it may be this engine alone
    assert capsys.readouterr().err == ""
    assert cause(check, report(w=(2, 2))) == ""
    assert "r3l-notice: the weights of two" in capsys.readouterr().err
    assert cause(check, report(w=(3, 3))) == "" and capsys.readouterr().err == ""
    assert cause(LoadCheck(), report()) == ""  # quantized
    assert cause(LoadCheck(), report(), report(w=(1, 1))) == ""


def test_a_set_without_sums_is_not_compared() -> None:
    LoadCheck().check(Manifest("o", 7, LAYOUT, (0,)), [report(w=(1, 1))])
