"""Weights are what the folder says that they are, or the model is refused before a start."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from launch.checks.of_model import check_learner
from r3l.errors import UserError
from r3l.models.model_folder import check_model_folder
from r3l.models.model_path import builtin_policy
from r3l.models.weight_files import INDEX, SINGLE, check_trainable
from r3l.run.config import load

LAYERS, ROWS = 2, 6
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


def tensors() -> dict[str, np.ndarray]:
    layers = {f"model.layers.{n}.mlp.weight": np.zeros((2, 2), np.float16) for n in range(LAYERS)}
    return {"model.embed_tokens.weight": np.zeros((ROWS, 2), np.float16), **layers}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model whose weights are in two files."""
    folder = tmp_path / "model"
    folder.mkdir()
    sizes = {"num_hidden_layers": LAYERS, "vocab_size": ROWS}
    (folder / "config.json").write_text(json.dumps(sizes))
    (folder / "tokenizer.json").write_text("{}")
    names = sorted(tensors())
    index = {}
    for file, part in ((FIRST, names[:1]), (SECOND, names[1:])):
        save_file({name: tensors()[name] for name in part}, folder / file)
        index |= dict.fromkeys(part, file)
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))
    return folder


def checked(folder: Path) -> str:
    """The line that refuses a folder; "" if it is taken."""
    try:
        check_model_folder(folder, "model mine")
        check_trainable(folder, "model mine")
    except UserError as error:
        line = str(error)
        assert line.startswith("model mine: ") and "\n" not in line and ";" in line
        return line
    return ""


def edit(folder: Path, file: str, **values: object) -> None:
    text = (folder / file).read_text() if (folder / file).exists() else "{}"
    (folder / file).write_text(json.dumps(json.loads(text) | values))


def reindex(folder: Path, **more: str) -> None:
    index = json.loads((folder / INDEX).read_text())["weight_map"] | more
    (folder / INDEX).write_text(json.dumps({"weight_map": index}))


def cut(file: Path, size: int) -> None:
    file.write_bytes(file.read_bytes()[:size])


WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file is missing": (lambda m: (m / SECOND).unlink(), f"{INDEX} names {SECOND}, which"),
    "all files are missing": (
        lambda m: [(m / file).unlink() for file in (FIRST, SECOND)],
        f"names {FIRST} and 1 more",
    ),
    "a link leads nowhere": (
        lambda m: ((m / SECOND).unlink(), (m / SECOND).symlink_to("/nowhere")),
        f"{SECOND} is damaged",
    ),
    "a tensor is missing": (
        lambda m: reindex(m, extra=FIRST),
        f"says that {FIRST} holds the tensor extra, but that file lacks it",
    ),
    "a tensor is in the other file": (
        lambda m: reindex(m, **{"model.embed_tokens.weight": SECOND}),
        f"says that {SECOND} holds the tensor model.embed_tokens.weight",
    ),
    "the index is missing": (lambda m: (m / INDEX).unlink(), f"there is no {SINGLE} or {INDEX}"),
    "the index is not JSON": (lambda m: (m / INDEX).write_text("{"), "is not an index"),
    "the index is a list": (lambda m: (m / INDEX).write_text("[]"), "is not an index"),
    "the index names nothing": (lambda m: (m / INDEX).write_text('{"weight_map": {}}'), "not an "),
    "the index has numbers": (lambda m: (m / INDEX).write_text('{"weight_map": {"a": 1}}'), "not "),
    "a file ends in its tensors": (lambda m: cut(m / SECOND, 150), f"{SECOND} is damaged"),
    "a file ends in its header": (lambda m: cut(m / SECOND, 20), f"{SECOND} is damaged"),
    "a file is empty": (lambda m: cut(m / SECOND, 0), f"{SECOND} is damaged"),
    "a file is a pointer": (
        lambda m: (m / SECOND).write_text("version https://git-lfs.github.com/spec/v1\noid x"),
        "run git lfs pull",
    ),
    "layers are missing": (
        lambda m: edit(m, "config.json", num_hidden_layers=4),
        "4 layers, and the weights lack layer 2",
    ),
    "layers of the text are missing": (
        lambda m: edit(m, "config.json", text_config={"num_hidden_layers": 3}),
        "lack layer 2",
    ),
    "rows are missing": (lambda m: edit(m, "config.json", vocab_size=9), "has 6 rows"),
    "gptq, as it was": (lambda m: edit(m, "quantize_config.json"), "quantized (quantize_config.j"),
    "modelopt": (lambda m: edit(m, "hf_quant_config.json"), "quantized (hf_quant_config.json)"),
    "layers are too many": (
        lambda m: edit(m, "config.json", num_hidden_layers=1),
        "config.json has 1 layers, and the weights have model.layers.1 too",
    ),
    "a quantized text": (
        lambda m: edit(m, "config.json", text_config={"quantization_config": {"quant_method": 1}}),
        "quantized (quantization_config: 1)",
    ),
    "compressed": (
        lambda m: edit(m, "config.json", compression_config={"quant_method": "compressed-tensors"}),
        "quantized (quantization_config: compressed-tensors)",
    ),
    **{
        kind: (
            lambda m, kind=kind: edit(m, "config.json", quantization_config={"quant_method": kind}),
            f"quantized (quantization_config: {kind}), and the learner cannot train",
        )
        for kind in ("bitsandbytes", "gptq", "awq", "fp8", "mxfp4", "compressed-tensors")
    },
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_folder_that_lacks_what_it_names_is_refused(model: Path, name: str) -> None:
    assert checked(model) == ""
    change, reason = WRONG[name]
    change(model)
    assert reason in checked(model)


@pytest.mark.parametrize(
    ("name", "kind", "shape", "refused"),
    [
        ("a", "F8_E4M3", [4], True),
        ("a.weight", "I8", [2, 2], True),
        ("a.weight", "U8", [2, 2], True),
        ("a.qweight", "I32", [1], True),
        ("position_ids", "I64", [1], False),
        ("h.attn.bias", "U8", [2, 2], False),
    ],
)
def test_weights_of_fewer_bits_are_refused_without_a_word_in_config(
    model: Path, name: str, kind: str, shape: list[int], refused: bool
) -> None:
    size = {"I64": 8, "I32": 4}.get(kind, 4)
    of = {"dtype": kind, "shape": shape, "data_offsets": [0, size]}
    header = json.dumps({name: of}).encode()
    reindex(model, **{name: "extra.safetensors"})
    (model / "extra.safetensors").write_bytes(
        len(header).to_bytes(8, "little") + header + bytes(size)
    )
    assert (f"quantized (numbers of {kind})" in checked(model)) == refused


def test_one_file_needs_no_index_and_a_null_is_no_quantization(model: Path) -> None:
    for file in (FIRST, SECOND, INDEX):
        (model / file).unlink()
    save_file(tensors(), model / SINGLE)
    edit(model, "config.json", quantization_config=None)
    assert checked(model) == ""
    (model / SINGLE).rename(model / "weights.safetensors")
    assert "its weights are in weights.safetensors, but" in checked(model)


def test_weights_that_are_not_loaded_may_have_other_layers(model: Path) -> None:
    save_file({"layers.7.mlp.weight": np.zeros((9, 9))}, model / "consolidated.safetensors")
    assert checked(model) == ""


def test_quantized_weights_may_play_and_not_learn(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(builtin_policy(), folder)
    edit(folder, "config.json", quantization_config={"quant_method": "awq"})
    check_model_folder(folder, "model mine")
    config = load(None, [f"model={folder}"])
    with pytest.raises(UserError, match=rf"^model {folder}: .*awq.*; give the model that"):
        check_learner(config, "cpu", folder)


def test_an_adapter_alone_is_refused_with_its_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "Qwen/Qwen3-4B"}')
    assert "an adapter of Qwen/Qwen3-4B without its model; load both" in checked(tmp_path)
    (tmp_path / "adapter_config.json").write_text("[")
    assert "holds an adapter without its model" in checked(tmp_path)
