"""Which folder may be made new."""

import re
from pathlib import Path

import pytest

from r3l.errors import UserError
from r3l.files.new_folder import check_new, new_folder


def test_a_new_folder_is_written_beside_its_name_and_half_of_an_earlier_one_removed(
    tmp_path: Path,
) -> None:
    half = tmp_path / ".building-copy"
    half.mkdir()
    (half / "data.mdb").write_text("half")
    (tmp_path / "copy").mkdir()
    with new_folder(tmp_path / "copy", "copy to") as building:
        assert building == half and not list(half.iterdir())
        (half / "notes").write_text("mine")
    assert (tmp_path / "copy" / "notes").is_file() and not half.exists()
    with (
        pytest.raises(UserError, match=r"copy to .*: is not empty"),
        new_folder(tmp_path / "copy", "copy to"),
    ):
        pass
    with (
        pytest.raises(UserError, match=r"store .*Not a directory"),
        new_folder(tmp_path / "copy" / "notes" / "new", "store"),
    ):
        pass


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        (".", "cannot be used; name a new folder inside it"),
        (__file__, "is a file; choose a new folder"),
        ("/dev/null", "cannot be used (Not a directory); choose a new folder"),
    ],
)
def test_what_is_no_folder_or_has_no_name_is_refused(folder: str, why: str) -> None:
    with pytest.raises(UserError, match=re.escape(f"--out {folder}: {why}")):
        check_new(Path(folder), "--out")
