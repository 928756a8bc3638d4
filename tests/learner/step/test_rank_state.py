"""A rank's state as tensors and JSON."""

import json

import pytest
import torch

from learner.step.rank_state import join, split


def test_a_state_tree_survives_tensors_and_json() -> None:
    moments = {0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2)}, 1: {}}
    tree = {"optimizer": moments, "masters": [torch.zeros(3)], "name": "adam", "none": None}
    tensors, plain = split(tree)
    assert all(isinstance(tensor, torch.Tensor) for tensor in tensors.values())
    again = join(tensors, json.loads(json.dumps(plain)))
    assert list(again["optimizer"]) == [0, 1] and again["optimizer"][1] == {}
    assert torch.equal(again["optimizer"][0]["exp_avg"], torch.ones(2))
    assert torch.equal(again["masters"][0], torch.zeros(3))
    assert (again["name"], again["none"]) == ("adam", None)


def test_saved_tensors_do_not_change_with_the_ones_that_train() -> None:
    trained = torch.zeros(2)
    tensors, _ = split([trained])
    trained += 1
    assert [tensor.tolist() for tensor in tensors.values()] == [[0.0, 0.0]]


def test_a_value_that_json_cannot_hold_is_refused_with_its_path() -> None:
    with pytest.raises(TypeError, match="/optimizer/0: a set cannot be kept in a checkpoint"):
        split({"optimizer": [{1, 2}]})
