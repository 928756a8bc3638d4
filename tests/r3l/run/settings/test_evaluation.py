"""Settings of evaluations: one temperature or several."""

import pytest

from r3l.errors import UserError
from r3l.run.config import dump, load


def test_several_temperatures_stand_in_place_of_one_and_the_first_is_the_main_one(tmp_path):
    one = load(None, ["eval.temperature=0.25"]).eval
    assert (one.main_temperature, one.further_temperatures) == (0.25, ())
    config = load(None, ["eval.temperatures=[1,0,0.5]"])
    assert (config.eval.main_temperature, config.eval.further_temperatures) == (1.0, (0.0, 0.5))
    assert config.for_evaluation().actor.temperature == 1.0
    assert config.for_evaluation(0.0).actor.temperature == 0.0
    (tmp_path / "config.yaml").write_text(dump(config))
    assert load(tmp_path / "config.yaml") == config


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("[1,1]", "config eval.temperatures: names a temperature twice; name each once"),
        ("[1,-0.5]", "must be at least 0, not -0.5"),
        ("[3]", "must be at most 2, not 3"),
        ("0.5", "config eval.temperatures: must be a list, not 0.5"),
    ],
)
def test_temperatures_that_cannot_be_are_refused(override, said):
    with pytest.raises(UserError) as caught:
        load(None, [f"eval.temperatures={override}"])
    assert said in str(caught.value) and "config eval.temperatures" in str(caught.value)


def test_one_temperature_beside_several_is_refused_and_not_ignored():
    with pytest.raises(UserError, match=r"eval\.temperatures=\[1,0\]; set"):
        load(None, ["eval.temperatures=[1,0]", "eval.temperature=0.3"])
    assert load(None, ["eval.temperature=0.3", "eval.temperatures=[]"]).eval.main_temperature == 0.3
