"""Targets of uploads: real local and in-memory file systems, a stand-in for the hub."""

from pathlib import Path
from types import SimpleNamespace

import fsspec
import huggingface_hub
import pytest

from learner.outputs import upload_targets
from learner.outputs.upload_targets import FileSystem, check, target_of
from r3l.errors import UserError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint of three files, one of them in a folder."""
    made = tmp_path / "step-000050"
    (made / "adapter").mkdir(parents=True)
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "adapter" / "a.json").write_text("{}")
    (made / "state.json").write_text("state")
    return made


def test_a_folder_is_copied_to_a_local_folder_that_is_made(folder: Path, tmp_path: Path) -> None:
    address = f"file://{tmp_path}/there/deep"
    check(address)
    target_of(address).send(folder, "checkpoints/step-000050")
    there = tmp_path / "there" / "deep" / "checkpoints" / "step-000050"
    assert (there / "model.safetensors").read_bytes() == b"weights"
    assert (there / "adapter" / "a.json").read_text() == "{}"
    assert [path.name for path in (tmp_path / "there" / "deep").iterdir()] == ["checkpoints"]


def test_a_folder_is_copied_to_an_object_store(folder: Path) -> None:
    check("memory://bucket/run")
    target_of("memory://bucket/run").send(folder, "best")
    found = fsspec.filesystem("memory").find("/bucket/run")
    names = ["adapter/a.json", "model.safetensors", "state.json"]
    assert found == [f"/bucket/run/best/{name}" for name in names]


def test_the_state_file_of_a_checkpoint_is_sent_last(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, sent = FileSystem("memory://order"), []
    monkeypatch.setattr(target._files, "put_file", lambda source, there: sent.append(there))
    (folder / "tokenizer.json").write_text("{}")  # after state.json in the alphabet
    target.send(folder, "x")
    assert len(sent) == 4 and sent[-1].endswith("x/state.json")


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("/just/a/folder", "must be an address such as s3://bucket/path"),
        ("s4://bucket", "Protocol not known: s4"),
        ("hf://repository", "must be hf://user/repository"),
        ("hf://user/repository/more", "must be hf://user/repository"),
    ],
)
def test_an_address_that_cannot_be_meant_is_refused_in_one_line(address: str, said: str) -> None:
    with pytest.raises(UserError, match=said) as refused:
        check(address)
    assert str(refused.value).count(address) == 1 and "\n" not in str(refused.value)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(*args: object, **kwargs: object) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr("fsspec.core.url_to_fs", without)
    with pytest.raises(UserError, match=r"s3://bucket/x: a package is missing \(Install s3fs"):
        check("s3://bucket/x")


def test_a_target_that_takes_no_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        check(f"file://{tmp_path}/file/below")


def test_a_target_that_does_not_reply_is_refused_at_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import threading

    never = threading.Event()
    silent = SimpleNamespace(check=never.wait)
    monkeypatch.setattr(upload_targets, "target_of", lambda address: silent)
    monkeypatch.setattr(upload_targets, "CHECK_S", 0.05)
    with pytest.raises(UserError, match="no reply within"):
        check("s3://bucket/x")
    never.set()


def test_the_hub_gets_a_private_repository_and_one_commit_a_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    class Recorder:
        def create_repo(self, repo_id: str, *, private: bool, exist_ok: bool) -> None:
            calls.append(("create_repo", repo_id, private, exist_ok))

        def auth_check(self, repo_id: str, *, write: bool) -> None:
            calls.append(("auth_check", repo_id, write))
            if repo_id == "others/policy":
                raise PermissionError("403: you may not write to others/policy")

        def upload_folder(
            self, *, repo_id: str, folder_path: str, path_in_repo: str, commit_message: str
        ) -> None:
            calls.append((repo_id, folder_path, path_in_repo, commit_message))

    monkeypatch.setattr(huggingface_hub, "HfApi", Recorder)
    check("hf://user/policy")
    target = target_of("hf://user/policy")
    target.send(folder, "model")
    target.send(folder, "checkpoints/step-000050")
    with pytest.raises(UserError, match=r"hf://others/policy: .*403: you may not write"):
        check("hf://others/policy")
    assert calls[:-2] == [
        ("create_repo", "user/policy", True, True),
        ("auth_check", "user/policy", True),
        ("user/policy", str(folder), "", "r3l: model"),
        ("user/policy", str(folder), "checkpoints/step-000050", "r3l: checkpoints/step-000050"),
    ]


def test_the_hub_s_own_methods_take_these_arguments() -> None:
    import inspect

    api = huggingface_hub.HfApi
    inspect.signature(api.create_repo).bind(None, "user/x", private=True, exist_ok=True)
    inspect.signature(api.auth_check).bind(None, "user/x", write=True)
    inspect.signature(api.upload_folder).bind(
        None, repo_id="user/x", folder_path="f", path_in_repo="", commit_message="m"
    )
