"""Archive files at any address: other programs read them, and a missing library is named."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from buffer.storage import archive_files
from buffer.storage.archive_files import Archive
from buffer.storage.stored_rows import GroupRow
from r3l.errors import StoreError, UserError
from r3l.records import GroupPlan


def rows(count, size=400_000):
    """Rows and records of closed groups: some share a row group, some have one of their own."""
    return [
        (
            GroupRow(f"g{n:010d}", f"t{n}", n, GroupPlan(1), state="trained", rewards=(0.5,),
                     times={"trained": 9.0}, steps=(n,)),
            bytes([n]) * size,
        )
        for n in range(1, count + 1)
    ]  # fmt: skip


@pytest.mark.parametrize("address", ["memory://bucket/run", "local", "file://"])
def test_every_record_is_read_back_bit_for_bit_by_r3l_and_by_other_programs(tmp_path, address):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pip install 'r3l[archive]'")
    if "memory" not in address:
        address = address.replace("local", "") + str(tmp_path / "deep" / "archive")
    made, groups = Archive(address), rows(7)
    places = made.add(groups)
    assert made.add(groups) == places  # the same file again
    for archive in (made, Archive(address)):
        for row, record in reversed(groups):
            assert archive.record(row.group_id, places[row.group_id]) == record
    assert len({place.row_group for place in places.values()}) == 3
    if "memory" not in address:
        (file,) = (tmp_path / "deep" / "archive").iterdir()
        table = parquet.read_table(file)
        assert table.column("group_id").to_pylist() == list(places)
        assert table.column("steps").to_pylist() == [[n] for n in range(1, 8)]


def test_threads_read_one_archive_at_once(tmp_path):
    pytest.importorskip("pyarrow", reason="pip install 'r3l[archive]'")
    archive, groups = Archive(str(tmp_path)), rows(12)
    places, wrong = archive.add(groups), []

    def read(start):
        for row, record in groups[start:] + groups[:start]:
            if archive.record(row.group_id, places[row.group_id]) != record:
                wrong.append(row.group_id)

    threads = [threading.Thread(target=read, args=(start,), daemon=True) for start in (0, 4, 8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert wrong == []


def test_a_record_that_is_not_the_archived_one_is_refused(tmp_path):
    pytest.importorskip("pyarrow", reason="pip install 'r3l[archive]'")
    archive, groups = Archive(str(tmp_path)), rows(2)
    one, two = archive.add(groups).values()
    with pytest.raises(StoreError, match=r"group g0000000001: .* is damaged") as told:
        archive.record("g0000000001", type(one)(two.file, two.row_group, two.row, one.digest))
    assert (told.value.cause, told.value.facts["kind"]) == ("archive", "damaged")


def test_a_missing_library_and_an_unknown_kind_of_address_are_named(monkeypatch):
    with pytest.raises(UserError, match=r"buffer.archive=nothing://here: .*nothing"):
        Archive("nothing://here")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"needs pyarrow: pip install 'r3l\[archive\]'"):
        Archive("/somewhere")


def test_a_disk_that_fills_while_a_file_is_written_is_named_and_leaves_no_piece(
    tmp_path, monkeypatch
):
    pytest.importorskip("pyarrow", reason="pip install 'r3l[archive]'")
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "r3l-test", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    monkeypatch.setattr(archive_files, "DISK_FLOOR", -(1 << 40))  # the check in time is another
    try:
        archive, noise = Archive(str(place)), np.random.default_rng(0)
        groups = [(row, noise.bytes(400_000)) for row, _ in rows(5)]
        with pytest.raises(StoreError, match=r"archive .*small, file g0.*: No space left") as told:
            archive.add(groups)
        assert told.value.facts["kind"] == "disk_full" and list(place.iterdir()) == []
        assert len(archive.add(groups[:2])) == 2  # there is room for those
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)
