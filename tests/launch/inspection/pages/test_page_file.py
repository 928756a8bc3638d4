"""Where a page is written."""

import pytest

from launch.inspection.pages.page_file import check_place, write_page
from r3l.errors import UserError


def test_a_page_is_written_whole(tmp_path):
    line = write_page(tmp_path / "a b.html", b"x" * 2048, "--out")
    assert line.endswith("a b.html: 2 KiB; opens in any browser, without a network")
    assert [path.name for path in tmp_path.iterdir()] == ["a b.html"]


def test_a_place_that_cannot_be_written_is_refused_in_one_line(tmp_path):
    with pytest.raises(UserError, match="is a folder; name a file"):
        check_place(tmp_path, "--html")
    with pytest.raises(UserError, match="its folder does not exist"):
        check_place(tmp_path / "no" / "a.html", "--html")
    with pytest.raises(UserError, match=r"--html .*cannot be written"):
        write_page(tmp_path / ("x" * 300), b"", "--html")
