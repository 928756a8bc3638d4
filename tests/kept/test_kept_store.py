"""A store that a released version wrote is read, served, drawn from, exported and written on."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from buffer import BufferClient, cli
from buffer.storage import layout
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.verify import verify
from r3l import codec
from r3l.records import GroupPlan
from tests.buffer.fakes import Served, finished
from tests.buffer.storage.full_store import plain
from tests.kept import VERSIONS, lacks
from tests.kept.stores import KINDS, contents, records, unpack

OPTIONS = (
    "learner.groups_per_step=2", "buffer.max_staleness=3", "buffer.sampler=prioritised",
    "buffer.sampler.reuse=2", "buffer.sampler.cooldown=1", "buffer.sampler.beta=0.5",
)  # fmt: skip
HALF = "g0000000010"
"""A group of four slots. Three have a result, and one has progress."""


@pytest.fixture(params=VERSIONS)
def kept(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A copy of a kept store, and what its version read in it."""
    folder = tmp_path / "store"
    return folder, unpack(request.param, folder)


@pytest.fixture
def served(kept: tuple[Path, dict[str, Any]]) -> Iterator[Served]:
    service = Served(kept[0], "tcp://127.0.0.1:0", *OPTIONS)
    yield service
    if service.process.poll() is None:
        service.kill()


def test_a_kept_store_is_kept_of_the_first_release() -> None:
    assert "0.1" in VERSIONS


def test_a_kept_store_is_read_as_its_version_read_it_and_not_changed(kept) -> None:
    folder, known = kept
    before = (folder / "data.mdb").read_bytes()
    with Store(folder, read_only=True) as store:
        assert verify(store) == []
        seen = contents(store)
    assert (
        lacks(seen, {name: known[name] for name in known if name not in ("numbers", "more")}) == []
    )
    assert (folder / "data.mdb").read_bytes() == before


def test_records_that_no_store_of_the_tests_holds_are_read_too(kept) -> None:
    for name, data, known in kept[1]["more"]:
        record = codec.decode(KINDS[name], bytes.fromhex(data))
        assert lacks(json.loads(json.dumps(plain(record))), known, name) == []


def test_while_the_numbers_are_the_same_records_are_written_byte_for_byte_as_they_were(
    kept,
) -> None:
    """Who adds a field raises the number too: the version before would refuse such a record."""
    folder, known = kept
    if known["numbers"]["records"] != codec.SCHEMA:
        return
    with Store(folder, read_only=True) as store:
        held = list(records(store))
    held += [(name, KINDS[name], bytes.fromhex(data)) for name, data, _ in known["more"]]
    for where, kind, data in held:
        assert codec.encode(codec.decode(kind, data)) == data, (
            f"{where}: raise SCHEMA in r3l/codec.py, and read {codec.SCHEMA} too"
        )


def test_a_kept_store_has_something_in_every_table(kept) -> None:
    folder, known = kept
    if known["numbers"]["store"] == layout.SCHEMA:
        with Store(folder, read_only=True) as store, store.read() as txn:
            assert [table for table in layout.TABLES if not txn.size(table)] == []


def test_a_service_gives_draws_and_takes_groups_of_a_kept_store(kept, served) -> None:
    folder, known = kept
    groups = {group["group_id"]: group for group in known["groups"]}
    closed = [name for name, group in groups.items() if group["state"] in ("trained", "expired")]
    trained = [name for name in closed if groups[name]["state"] == "trained"]
    version = known["progress"]["version"]
    with BufferClient(served.endpoint, name="test", timeout_s=60) as client:
        given = [json.loads(json.dumps(plain(group))) for group in client.get(closed)]
        assert lacks(given, [groups[name] for name in closed]) == []
        found = [group.group_id for group in client.query("train", state="trained")]
        assert found == sorted(trained, reverse=True)
        assert [group.tag for group in client.query("eval", state="complete")] == ["step-2"]
        leases = [client.lease("new", version, GroupPlan(2)) for _ in range(3)]
        (half,) = (lease for lease in leases if lease.group_id == HALF)
        assert {result.slot for result in half.accepted} == {0, 2, 3}
        assert client.put(HALF, "new", [finished(1, version=2)]).complete
        client.release_draws()
        draw = client.draw(2, version)
        assert {group.group_id for group in draw.groups} <= {*groups}
        assert client.commit(draw.draw_id, version + 1, version + 1)
    assert served.stop() == 0
    with Store(folder, read_only=True) as store:
        assert verify(store) == []
        again, gone = store_reads.replay(store, version + 1)
        assert [group.group_id for group in again] == [group.group_id for group in draw.groups]
        assert not gone and store_reads.group(store, HALF).state == "complete"


def test_the_commands_read_a_kept_store(kept, tmp_path) -> None:
    folder, known = kept

    def run(command: str, *arguments: str) -> str:
        result = CliRunner().invoke(cli.main, [command, str(folder), *arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    exported = [json.loads(line) for line in run("export").splitlines()]
    assert lacks(exported, known["exported"]) == []
    assert run("verify") == "clean\n"
    assert len(run("ls").splitlines()) == len(known["groups"])
    assert "people" in run("ls", "source == 'people'")
    assert HALF in run("show", HALF)
    last = known["ledger"][-1]
    assert [
        json.loads(line)["group_id"] for line in run("replay", str(last["step"])).splitlines()
    ] == (last["groups"])
    run("export", "--as", "traces", "--out", str(tmp_path / "traces"))
    run("compact", str(tmp_path / "copy"))
    with Store(tmp_path / "copy", read_only=True) as copy:
        assert lacks(contents(copy)["rows"], known["rows"]) == []
