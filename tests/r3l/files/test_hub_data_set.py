"""Data sets of the hub: which files a split has, and what their rows are."""

import gzip
import json
import re
import sys
from pathlib import Path

import pytest
from huggingface_hub import hf_hub_download, snapshot_download

from r3l.errors import NotDownloaded, UserError
from r3l.files import hub_cache
from r3l.files.hub_cache import Download, Repository, listing
from r3l.files.hub_data_set import commits, is_name, needed_files, rows, split_files
from tests.r3l.files.hub_server import COMMIT, Hub

README = b"""---
configs:
- config_name: main
  default: true
  data_files:
  - split: train
    path: main/train-*
  - split: test
    path: [main/test.json]
- config_name: all
  data_files: ["*/more*", "main/train-00001*"]
---
# A set
"""


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture
def data(hub: Hub) -> Hub:
    hub.files["datasets", "org/d"] = {
        "README.md": README,
        "main/train-00000-of-00002.jsonl": lines({"q": 1}),
        "main/train-00001-of-00002.jsonl": lines({"q": 2}),
        "main/test.json": json.dumps([{"q": 3}, {"q": 4}]).encode(),
        "extra/more.jsonl.gz": gzip.compress(lines({"q": 5})),
    }
    return hub


def download(where: str) -> None:
    repo = Repository(re.split("[:@]", where)[0], kind="dataset", written=where)
    listed = listing(repo)
    Download(listed, tuple(needed_files(listed))).execute()


def test_only_the_files_of_a_split_are_downloaded_and_read(data: Hub) -> None:
    with pytest.raises(
        NotDownloaded, match=r"data set org/d@train: is neither a path here nor in the"
    ):
        rows("org/d@train")
    download("org/d@train")
    assert not any("test.json" in path or "extra" in path for path in data.asked)
    data.asked.clear()
    assert rows("org/d@train") == rows("org/d:main@train") == [{"q": 1}, {"q": 2}]
    assert data.asked == [] and commits["org/d"] == COMMIT
    with pytest.raises(NotDownloaded):
        rows("org/d@test")
    download("org/d@test")
    assert rows("org/d@test") == [{"q": 3}, {"q": 4}]
    download("org/d:all@train")
    assert rows("org/d:all@train") == [{"q": 5}, {"q": 2}]


def test_a_part_that_is_missing_is_named(data: Hub) -> None:
    download("org/d@train")
    folder = hub_cache.snapshot(Repository("org/d", kind="dataset"))
    assert folder is not None
    (folder / "main/train-00001-of-00002.jsonl").unlink()
    with pytest.raises(NotDownloaded, match=r"lacks main/train-00001-of-00002\.jsonl; type: hf "):
        rows("org/d@train")


def test_a_file_of_the_split_that_another_program_did_not_download_is_missed(hub: Hub) -> None:
    files = {"train/a.jsonl": lines({"q": 1}), "train/b.jsonl": lines({"q": 2}), "README.md": b"-"}
    hub.files["datasets", "org/d"] = files
    commit = {"repo_type": "dataset", "revision": "main", "cache_dir": hub_cache.cache()}
    hf_hub_download("org/d", "train/a.jsonl", endpoint=hub.address, **commit)
    with pytest.raises(NotDownloaded, match="lacks the list of its files; type: hf download org/d"):
        rows("org/d@train")
    snapshot_download("org/d", allow_patterns="train/a*", endpoint=hub.address, **commit)
    with pytest.raises(NotDownloaded, match=r"lacks README\.md; type"):
        rows("org/d@train")
    hf_hub_download("org/d", "README.md", endpoint=hub.address, **commit)
    with pytest.raises(NotDownloaded, match=r"lacks train/b\.jsonl; type"):
        rows("org/d@train")
    download("org/d@train")
    assert rows("org/d@train") == [{"q": 1}, {"q": 2}]


@pytest.mark.parametrize(
    ("head", "why"),
    [
        ("configs: 3", "configs is not a list of objects"),
        ("configs: [3]", "configs is not a list of objects"),
        ("configs: [{data_files: 3}]", "data_files has 3 where a path must be"),
        ("configs: [{data_files: [{split: train, path: [3]}]}]", "data_files has 3 where a path"),
        ("configs: [", "while parsing"),
        ("[3]", "should be a dict"),
    ],
)
def test_a_readme_that_says_nothing_usable_is_refused(hub: Hub, head: str, why: str) -> None:
    readme = f"---\n{head}\n---\n".encode()
    hub.files["datasets", "org/d"] = {"README.md": readme, "train.jsonl": lines({"q": 1})}
    with pytest.raises(UserError, match=rf"^data set org/d@train: its README\.md .*{why}.*; down"):
        download("org/d@train")


def test_a_configuration_without_a_name_is_the_default_one() -> None:
    configs = [{"data_files": "a.jsonl"}, {"config_name": "b", "data_files": "b.jsonl"}]
    names = ["a.jsonl", "b.jsonl"]
    assert split_files(names, configs, "", "train") == ["a.jsonl"]
    assert split_files(names, configs, "default", "train") == ["a.jsonl"]
    assert split_files(names, configs, "b", "train") == ["b.jsonl"]


def test_a_split_that_does_not_exist_is_refused_with_those_that_do(data: Hub) -> None:
    configurations = "its configurations are main, all$"
    for where, known in (
        ("org/d@dev", rf"split dev; its splits are train, test; {configurations}"),
        ("org/d:all@dev", rf"split dev in all; {configurations}"),
        ("org/d:other@train", rf"split train in other; {configurations}"),
    ):
        with pytest.raises(UserError, match=known):
            download(where)
    head = "---\nconfigs: [{data_files: [{split: test, path: a.jsonl}]}]\n---\n"
    data.files["datasets", "org/e"] = {"README.md": head.encode(), "a.jsonl": b"{}\n"}
    with pytest.raises(UserError, match=r"split train; its splits are test$"):
        download("org/e@train")


def test_without_configurations_the_names_of_files_decide() -> None:
    assert split_files(["a.jsonl", "b/c.json", "README.md"], [], "", "train") == [
        "a.jsonl", "b/c.json",
    ]  # fmt: skip
    parts = ["train.jsonl", "data/test-0.parquet", "testament.jsonl", "en/dev/a.jsonl"]
    assert split_files(parts, [], "", "train") == ["train.jsonl"]
    assert split_files(parts, [], "", "test") == ["data/test-0.parquet"]
    assert split_files(parts, [], "en", "dev") == ["en/dev/a.jsonl"]
    assert split_files(parts, [], "", "validation") == []


def test_a_damaged_or_unknown_file_is_named(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"train.jsonl": b"{", "test.jsonl": b"[1]\n", "dev.csv": b"a,b\n"}
    hub.files["datasets", "org/d"] = files
    broken = {"train": r"train\.jsonl cannot be read", "test": "row 1: must be an object"}
    for split, said in broken.items():
        download(f"org/d@{split}")
        with pytest.raises(UserError, match=rf"^data set org/d@{split}: .*{said}"):
            rows(f"org/d@{split}")
    with pytest.raises(UserError, match="has no files of the split dev; check the name"):
        download("org/d@dev")


def test_a_table_without_pyarrow_is_one_line_with_the_install_command(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.files["datasets", "org/d"] = {"train.parquet": b"PAR1"}
    download("org/d@train")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"train\.parquet is a Parquet file, .*'r3l\[math\]'$"):
        rows("org/d@train")


def test_a_file_here_is_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_name("org/d@train") and is_name("org/d:main@train")
    assert not is_name("tasks.jsonl") and not is_name("org/d")
    (tmp_path / "org").mkdir()
    (tmp_path / "org" / "d@train").touch()
    assert not is_name("org/d@train")
