"""Stores that another model or tokenizer filled."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from buffer.storage.store import Store
from buffer.tools import store_reads
from learner.offline.origin_check import check_models, check_texts
from r3l.config import dump, load
from r3l.errors import UserError
from r3l.model_folder import read_tokenizer


def changed(model: Path, folder: Path, **settings: object) -> Path:
    """A copy of a model folder with other settings."""
    shutil.copytree(model, folder)
    values = json.loads((folder / "config.json").read_bytes()) | settings
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def test_a_store_of_another_tokenizer_is_refused(model: Path, store: Path) -> None:
    tokenizer = read_tokenizer(model, "model")
    opened = Store(store, read_only=True)
    group = store_reads.group(opened, "g0000000001")
    opened.close()
    check_texts([group], tokenizer, "model m")
    one = group.results[0].trajectory
    assert one is not None
    wrong = replace(one, actions=("something else", *one.actions[1:]))
    foreign = replace(group, results=(replace(group.results[0], trajectory=wrong),))
    with pytest.raises(UserError, match="the tokenizer of model m, but the action was 'something"):
        check_texts([foreign], tokenizer, "model m")


def test_a_store_of_a_model_of_another_architecture_is_refused(model: Path, tmp_path: Path) -> None:
    store = tmp_path / "run" / "buffer"
    store.mkdir(parents=True)
    check_models([store], model)  # it does not say who filled it
    (tmp_path / "run" / "config.yaml").write_text(dump(load(None, [f"model={model}"])))
    check_models([store], changed(model, tmp_path / "later", dtype="bfloat16"))
    other = changed(model, tmp_path / "other", num_hidden_layers=7)
    with pytest.raises(UserError, match=r"filled by the model .*, whose num_hidden_layers is 2; "):
        check_models([store], other)
    (tmp_path / "run" / "config.yaml").write_text(dump(load(None, ["model=/no/longer/there"])))
    check_models([store], other)
