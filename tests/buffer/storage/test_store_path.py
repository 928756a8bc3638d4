"""Stores are found by their folder, their run's, or their run's name."""

from pathlib import Path

import pytest

from buffer.storage.store_path import check_store, has_store, store_path
from r3l.errors import UserError


def test_a_store_is_found_by_its_folder_its_run_and_its_runs_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = tmp_path / "runs" / "first" / "buffer"
    store.mkdir(parents=True)
    (store / "data.mdb").touch()
    for place in (store, store.parent, "first"):
        assert store_path(str(place)).resolve() == store
    check_store(store_path("first"))
    assert has_store(store) and not has_store(store.parent)


def test_a_place_without_a_store_is_named_as_it_was_given(tmp_path: Path) -> None:
    assert store_path("nowhere") == Path("nowhere")
    with pytest.raises(UserError, match=r"^view nowhere: no store there"):
        check_store(store_path("nowhere"), "view")
