"""The user's cache of Hugging Face's hub, against a server that answers as the hub does."""

from pathlib import Path

import pytest

from r3l.errors import NotDownloaded, UserError
from r3l.files import hub_cache
from r3l.files.hub_cache import Download, Repository, absent, listing, of_error, snapshot
from tests.r3l.files.hub_server import COMMIT, Hub

TINY = Repository("org/tiny", written="org/tiny@main")


@pytest.fixture
def tiny(hub: Hub) -> Hub:
    hub.files["", "org/tiny"] = {"config.json": b"{}", "a.bin": b"x" * 3000, "b.bin": b"y" * 500}
    return hub


def test_what_is_downloaded_is_found_without_a_network(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert snapshot(TINY) is None
    download = Download(listing(TINY), ("config.json", "a.bin"))
    assert download.line() == (
        f"model org/tiny@main: no path here, but on the hub: 3 kB in 2 files from {tiny.address} "
        f"to {hub_cache.cache()}"
    )
    assert " in 1 file from " in Download(download.listing, ("a.bin",)).line()
    download.execute()
    assert download.missing == {} and not any("b.bin" in path for path in tiny.asked)
    monkeypatch.setattr(hub_cache, "endpoint", lambda: "http://127.0.0.1:1")
    folder = snapshot(TINY)
    assert folder is not None and (folder / "a.bin").read_bytes() == b"x" * 3000
    assert snapshot(Repository("org/tiny", COMMIT)) == folder
    assert snapshot(Repository("org/tiny", "v2")) is None


def test_an_interrupted_download_is_not_found_and_is_repeated(tiny: Hub) -> None:
    download = Download(listing(TINY), ("config.json", "a.bin"))
    tiny.broken.add("a.bin")
    with pytest.raises(UserError, match=r"^model org/tiny@main: .*; .*type: hf download org/tiny$"):
        download.execute()
    assert snapshot(TINY) is None and list(download.missing) == ["a.bin"]
    tiny.broken.clear()
    download.execute()
    assert snapshot(TINY) is not None


def test_a_full_disk_is_noticed_before_the_download(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_cache, "SPARE_BYTES", 1 << 60)
    with pytest.raises(
        UserError, match=r"needs 3 kB, but the disk of .*; free some, or set HF_HOM"
    ):
        Download(listing(TINY), ("a.bin",)).execute()


@pytest.mark.parametrize(
    ("repository", "said"),
    [
        (Repository("org/none"), "is neither a path here nor public at"),
        (Repository("org/shut"), "is gated; ask for access at .*/org/shut, then type: hf auth log"),
        (Repository("org/tiny", "v9"), "has no revision 'v9'; give a branch, a tag or a commit"),
        (Repository("org/none", kind="dataset"), "data set org/none: is neither a path"),
    ],
)
def test_what_the_hub_does_not_give_is_named_with_what_to_do(
    tiny: Hub, repository: Repository, said: str
) -> None:
    tiny.files["", "org/shut"], tiny.gated = {}, {"org/shut"}
    with pytest.raises(UserError, match=said) as error:
        listing(repository)
    assert "\n" not in str(error.value)


def test_without_a_network_one_line_says_what_to_type(
    hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_cache, "endpoint", lambda: "http://127.0.0.1:1")
    with pytest.raises(UserError) as error:
        listing(Repository("org/tiny", "v1"))
    said = str(error.value)
    assert (
        said.startswith("model org/tiny: is neither a path here nor in the hub cache")
        and "\n" not in said
    )
    assert said.endswith("there is a network, type: hf download org/tiny --revision v1")


def test_an_incomplete_download_is_called_so_without_a_network(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    Download(listing(TINY), ("config.json", "a.bin")).execute()
    monkeypatch.setattr(hub_cache, "endpoint", lambda: "http://127.0.0.1:1")
    with pytest.raises(UserError) as error:  # it is asked for files that the cache lacks
        listing(TINY)
    said = str(error.value)
    assert said.startswith("model org/tiny@main: its download in the hub cache (")
    assert ") is incomplete, and http://127.0.0.1:1 cannot be reached (" in said
    assert said.endswith("there is a network, type: hf download org/tiny")


def test_an_error_of_the_disk_names_the_file(
    tiny: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(hub_cache, "cache", lambda: tmp_path / "file" / "hub")
    with pytest.raises(
        UserError, match=r"^model org/tiny@main: .*/file/hub cannot be written \(Not a"
    ):
        Download(listing(TINY), ("a.bin",)).execute()


def test_a_mistake_of_the_program_is_no_fault_of_the_hub(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.HfApi.repo_info", lambda self: None)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        listing(TINY)


@pytest.mark.parametrize(
    ("name", "address", "said"),
    [
        ("org/a--b", "", "is neither a path here nor a name that http.* can have; check the name"),
        ("org/tiny", "no-address", r"and no-address cannot be reached \("),
        ("org/tiny", "http://[", r"and http://\[ cannot be reached \("),
    ],
)
def test_a_name_or_an_address_that_cannot_be_is_one_line(
    tiny: Hub, monkeypatch: pytest.MonkeyPatch, name: str, address: str, said: str
) -> None:
    monkeypatch.setattr(hub_cache, "endpoint", lambda: address or tiny.address)
    with pytest.raises(UserError, match=said):
        listing(Repository(name))


def test_an_error_of_what_is_absent_names_it_again() -> None:
    data = Repository("org/data", kind="dataset", written="org/data@test")
    error = absent(data, ["b.jsonl", "c.jsonl"])
    assert isinstance(error, NotDownloaded) and of_error(error).written == "org/data@test"
    assert str(error) == (
        "data set org/data@test: its download is incomplete: it lacks b.jsonl and 1 more; type: "
        "hf download org/data --repo-type dataset"
    )


def test_the_cache_and_the_address_are_those_of_huggingface_hub() -> None:
    from huggingface_hub import constants

    assert hub_cache.cache() == Path(constants.HF_HUB_CACHE)
    assert hub_cache.endpoint() == constants.ENDPOINT
