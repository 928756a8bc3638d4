"""A model folder: what it must hold, and the hash of what makes the model."""

import json
import shutil
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.files.whole_file import write_json
from r3l.models.model_folder import (
    CHECKSUMS,
    check_checksums,
    check_model_folder,
    float32_bytes,
    model_digest,
    read_tokenizer,
)
from r3l.models.model_path import builtin_policy


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A copy of the shipped policy."""
    folder = tmp_path / "model"
    shutil.copytree(builtin_policy(), folder)
    return folder


def test_weights_are_measured_as_float32(model: Path) -> None:
    stored = (model / "model.safetensors").stat().st_size
    assert float32_bytes(model) == 2 * stored  # the shipped policy is in bfloat16
    (model / "config.json").write_text('{"dtype": "float32"}')
    assert float32_bytes(model) == stored


def refusal(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        check_model_folder(folder, "--model mine")
        read_tokenizer(folder, "--model mine")
    assert str(caught.value).startswith("--model mine: ") and "\n" not in str(caught.value)
    return str(caught.value)


def test_a_model_folder_without_config_or_tokenizer_is_refused(model: Path) -> None:
    config = (model / "config.json").read_text()
    (model / "config.json").write_text("{}")
    assert "transformers cannot read it" in refusal(model)
    (model / "config.json").write_text(config)
    for file in model.glob("token*"):
        file.unlink()
    assert "no tokenizer" in refusal(model)
    (model / "config.json").unlink()
    assert "no config.json" in refusal(model)


def test_checksums_of_an_earlier_version_are_refused_with_what_to_do(model: Path) -> None:
    write_json(model / CHECKSUMS, {"files": {}})  # without a step
    with pytest.raises(UserError, match=rf"{CHECKSUMS}.*delete {CHECKSUMS} if"):
        check_checksums(model, "model mine")


@pytest.mark.parametrize(("weights", "named"), [(None, "no weights"), ("half", "is damaged")])
def test_incomplete_weights_are_refused(model: Path, weights: str | None, named: str) -> None:
    file = model / "model.safetensors"
    whole = file.read_bytes()
    file.unlink()
    if weights is not None:
        file.write_bytes(whole[: len(whole) // 2])
    assert named in refusal(model)
    check_model_folder(model, "--model mine", weights=False)


def test_an_unfinished_warm_up_is_no_model_and_says_how_it_becomes_one(tmp_path: Path) -> None:
    (tmp_path / "unfinished.json").write_text("{}")
    with pytest.raises(UserError, match=r"unfinished warm-up, .*; repeat its r3l-learner"):
        check_model_folder(tmp_path, "--model x")


def test_pickled_weights_are_refused_unless_there_are_others(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(b"")
    check_model_folder(model, "--model mine")
    (model / "model.safetensors").unlink()
    assert "pytorch_model.bin, a pickle" in refusal(model)


@pytest.mark.parametrize("kind", ["config", "tokenizer"])
def test_code_in_a_model_folder_is_never_run_and_nobody_is_asked(
    model: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    asked = list[str]()
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or "yes")
    ran = model / "ran"
    (model / "custom.py").write_text(f"open({str(ran)!r}, 'w')\n")
    for name, own in (
        ("config.json", {"model_type": "odd", "auto_map": {"AutoConfig": "custom.Config"}}),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["custom.Odd", None]}}),
    ):
        if name.startswith(kind):
            settings = json.loads((model / name).read_text()) | own
            (model / name).write_text(json.dumps(settings))
    if kind == "config":
        assert "needs code of its own" in refusal(model)
    else:
        read_tokenizer(model, "--model mine")  # with a class of transformers
    assert not asked and not ran.exists()


def test_an_adapter_beside_a_model_is_refused(model: Path) -> None:
    (model / "adapter_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"an adapter .*; merge"):
        check_model_folder(model, "model x")


def test_the_fingerprint_follows_the_weights_and_the_vocabulary_not_the_place(model: Path) -> None:
    assert model_digest(model) == model_digest(builtin_policy())
    vocabulary = (model / "tokenizer.json").read_text()
    (model / "tokenizer.json").write_text(vocabulary.replace('"brass"', '"copper"'))
    assert model_digest(model) != model_digest(builtin_policy())
    (model / "tokenizer.json").write_text(vocabulary)
    data = bytearray((model / "model.safetensors").read_bytes())
    data[len(data) // 2] ^= 1
    (model / "model.safetensors").write_bytes(data)
    assert model_digest(model) != model_digest(builtin_policy())


def test_a_tokenizer_with_more_tokens_than_the_model_is_refused_with_both_sizes(
    model: Path,
) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(model)
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    tokenizer.add_tokens([f"<extra {n}>" for n in range(size + 2 - len(tokenizer))])
    tokenizer.save_pretrained(model)
    rule = rf"{size + 2} tokens, the model only {size}; call model.resize_token_embeddings"
    with pytest.raises(UserError, match=rule):
        read_tokenizer(model, "--model mine")


def test_the_name_of_a_model_on_the_hub_is_answered_with_how_to_get_it(tmp_path: Path) -> None:
    for called in ("model Qwen/Qwen2.5-0.5B", "--model Qwen/Qwen2.5-0.5B"):
        with pytest.raises(UserError, match=r"hf download Qwen/Qwen2\.5-0\.5B "):
            check_model_folder(tmp_path / "none", called)
    with pytest.raises(UserError) as caught:
        check_model_folder(tmp_path / "none", "model ~/models/mine")
    assert "hf download" not in str(caught.value)


def test_a_tokenizer_is_saved_without_how_it_was_read(model: Path, tmp_path: Path) -> None:
    read_tokenizer(model, "--model mine").save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "tokenizer_config.json").read_text())
    assert "local_files_only" not in saved


def test_a_long_text_is_no_warning_of_transformers(
    model: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    tokenizer = read_tokenizer(model, "--model mine")
    assert len(tokenizer.encode("word " * 9000)) > tokenizer.model_max_length
    assert "longer than" not in caplog.text + "".join(capfd.readouterr())
