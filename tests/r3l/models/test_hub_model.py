"""Models of the hub: which files they need, and whether the cache has all of them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from r3l.errors import NotDownloaded, UserError
from r3l.files import hub_cache
from r3l.files.hub_cache import Repository
from r3l.models import hub_model
from r3l.models.hub_model import cached_model, needed_files
from r3l.models.model_folder import check_model_folder
from r3l.models.model_path import builtin_policy, model_path
from r3l.models.weight_files import INDEX, SINGLE
from tests.r3l.files.hub_server import COMMIT


class Listed:
    """A listing whose small files are given."""

    repository = Repository("org/m", written="org/m")

    def __init__(self, folder: Path, *names: str, **files: Any) -> None:
        self.files, self.folder = dict.fromkeys([*names, *files], 1), folder
        for name, content in files.items():
            (folder / name).write_text(json.dumps(content))

    def read(self, file: str) -> Path | None:
        return self.folder / file if (self.folder / file).exists() else None


def chosen(*of: Any, trained: bool = True, **files: Any) -> list[str]:
    listed: Any = Listed(*of, **files)
    return needed_files(listed, trained=trained)


def test_a_name_is_of_the_hub_unless_it_may_be_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    found = hub_model.repository("Qwen/Qwen2.5-0.5B@refs/pr/1")
    assert found == Repository("Qwen/Qwen2.5-0.5B", "refs/pr/1")
    assert found.written == "Qwen/Qwen2.5-0.5B@refs/pr/1"
    for path in (
        "runs/frist",
        "/a/b",
        "builtin",
        "a/b/c",
        "../b",
        "~/b",
        "x.gguf",
        "a/b@",
        "a/b@../c",
    ):
        assert hub_model.repository(path) is None, path


def test_a_folder_here_that_hides_a_name_of_the_hub_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen").mkdir()
    with pytest.raises(UserError, match="hub's only where there is no folder Qwen: start elsewh"):
        check_model_folder(model_path("Qwen/tiny"), "model Qwen/tiny")


def test_only_what_transformers_reads_is_needed(tmp_path: Path) -> None:
    names = (SINGLE, "tokenizer.json", "chat_template.jinja", "README.md", "consolidated.pth",
             "onnx/config.json", "model.fp16.safetensors", "logo.png", "model.bin")  # fmt: skip
    assert chosen(tmp_path, *names, **{"config.json": {}}) == [
        "config.json", "tokenizer.json", "chat_template.jinja", "README.md", SINGLE,
    ]  # fmt: skip


def test_of_several_files_those_of_the_index_are_needed(tmp_path: Path) -> None:
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    files = {"config.json": {}, INDEX: index}
    got = chosen(tmp_path, "m-1.safetensors", "m-2.safetensors", "m-3.safetensors", **files)
    assert got == ["config.json", INDEX, "m-1.safetensors", "m-2.safetensors"]
    with pytest.raises(UserError, match=rf"{INDEX} names m-2\.safetensors, which the hub lacks"):
        chosen(tmp_path, "m-1.safetensors", **files)


@pytest.mark.parametrize(
    ("names", "config", "said"),
    [
        ((SINGLE,), {"quantization_config": {"quant_method": "gptq"}},
         r"quantized \(quantization_config: gptq\), and the learner cannot train such weights; g"),
        (("pytorch_model.bin",), {}, r"pickles \(\*\.bin\), which may hold code; choose a model"),
        (("odd.safetensors",), {}, rf"are not in {SINGLE} or {INDEX}; choose"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_used_is_refused_before_its_weights_are_downloaded(
    tmp_path: Path, names: tuple[str, ...], config: dict[str, Any], said: str
) -> None:
    with pytest.raises(UserError, match=said):
        chosen(tmp_path, *names, **{"config.json": config})


def test_an_engine_alone_may_load_quantized_weights(tmp_path: Path) -> None:
    config = {"quantization_config": {"quant_method": "gptq"}}
    got = chosen(tmp_path, SINGLE, trained=False, **{"config.json": config})
    assert got == ["config.json", SINGLE]


def test_a_repository_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"holds GGUF files: type hf download org/m m\.Q4\.gguf, an"
    ):
        chosen(tmp_path, "m.Q4.gguf")
    with pytest.raises(UserError, match=r"has no config\.json; choose a model of transformers"):
        chosen(tmp_path, "data.csv")


def test_a_model_in_the_cache_is_used_if_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_cache, "cache", lambda: tmp_path / "hub")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotDownloaded, match=r"neither a path .*; type: hf download org/m"):
        model_path("org/m")
    folder = tmp_path / "hub" / "models--org--m"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    made = shutil.copytree(builtin_policy(), folder / "snapshots" / COMMIT)
    assert model_path("org/m") == cached_model(Repository("org/m")) == made
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (made / file).rename(tmp_path / file)
        with pytest.raises(NotDownloaded, match=rf"incomplete: it lacks {file}; type: hf download"):
            model_path("org/m")
        (tmp_path / file).rename(made / file)
    (made / "tokenizer.json").rename(made / "tokenizer.model")  # also a vocabulary
    assert model_path("org/m") == made
    (made / SINGLE).unlink()
    (made / SINGLE).symlink_to("../../blobs/that-was-never-finished")
    with pytest.raises(NotDownloaded, match=rf"incomplete: it lacks {SINGLE}; type: hf download"):
        model_path("org/m")
    index = {"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}
    (made / INDEX).write_text(json.dumps(index))
    (made / "m-1.safetensors").touch()
    with pytest.raises(NotDownloaded, match=r"incomplete: it lacks m-2\.safetensors; type"):
        model_path("org/m")


def test_of_a_model_whose_files_are_listed_those_are_needed_that_the_hub_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def listed(*names: str) -> None:
        monkeypatch.setattr(hub_model, "all_files", lambda _: ["config.json", SINGLE, *names])

    monkeypatch.setattr(hub_cache, "cache", lambda: tmp_path)
    made = tmp_path / "models--org--m" / "snapshots" / COMMIT
    made.mkdir(parents=True)
    for name in ("config.json", SINGLE):
        (made / name).touch()
    repo = Repository("org/m", COMMIT)
    listed("logo.png", "README.md", "LICENSE.txt", "onnx/tokenizer.json", "all_results.json")
    assert cached_model(repo) == made
    for name in ("tokenizer.json", "chat_template.jinja", "merges.txt", "qwen.tiktoken",
                 "spiece.model", "special_tokens_map.json", "generation_config.json"):  # fmt: skip
        listed(name)
        with pytest.raises(NotDownloaded, match=f"lacks {name}; type"):
            cached_model(repo)
