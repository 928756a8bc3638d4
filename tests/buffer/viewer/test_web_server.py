"""The viewer's server: what it answers, and whom it refuses."""

import contextlib
import socket
import threading
import time

import pytest

from buffer.storage.store import Store
from buffer.viewer.web_server import Viewer
from r3l.errors import UserError
from r3l.records import GroupPlan
from tests.buffer.viewer import stores


def test_the_page_and_its_data_lie_under_a_key_that_nobody_can_guess(asked):
    status, headers, body = asked.get(f"/{asked.viewer.key}/")
    assert status == 200 and body == asked.viewer.page
    assert headers["Content-Security-Policy"].endswith("frame-ancestors 'none'")
    assert headers["Referrer-Policy"] == "no-referrer" and len(asked.viewer.key) == 16
    for path in ("/", "/api/run", "/wrong/", f"/{asked.viewer.key}", "//", "/%00", "*", "//[x"):
        assert asked.get(path)[0] == 404, path


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", "127.0.0.1:x"])
def test_a_host_name_of_somebody_else_is_refused(asked, host):
    status, _, body = asked.get(f"/{asked.viewer.key}/api/run", host or " ")
    assert status == 403 and b"host name" in body


@pytest.mark.parametrize("host", ["localhost", "localhost:9000", "127.0.0.1:1"])
def test_a_tunnel_may_have_another_port(asked, host):
    assert asked.get(f"/{asked.viewer.key}/api/run", host)[0] == 200


def test_it_listens_on_loopback_only(asked):
    assert asked.viewer.server_address[0] == "127.0.0.1"


def test_the_run_is_summed_up(asked):
    status, run = asked.api("run")
    assert status == 200 and run["states"] == {"train": {"trained": 40}}
    assert (run["total"], run["listed"], run["version"]) == (40, 40, 0)
    assert "config.yaml" in run["notice"]


def test_groups_come_in_pages_of_which_each_begins_where_the_last_ended(asked):
    _, first = asked.api("groups", limit=15)
    _, second = asked.api("groups", limit=15, before=first["groups"][-1]["group"])
    _, third = asked.api("groups", limit=15, before=second["groups"][-1]["group"])
    ids = [one["group"] for found in (first, second, third) for one in found["groups"]]
    assert ids == [f"g{n:010}" for n in range(40, 0, -1)] and first["total"] == 40


def test_groups_of_a_task_and_filters_as_of_query(asked):
    text = "version < 2 and reward > 0.5"
    _, found = asked.api("groups", filter=text, env="doors", task="door/0001")
    assert [one["group"][-2:] for one in found["groups"]] == ["18", "14", "10", "06", "02"]
    assert asked.api("groups", env="other", task="door/0001")[1]["total"] == 0
    assert asked.api("groups", purpose="train")[1]["total"] == 40
    assert asked.api("tasks", purpose="eval")[1]["total"] == 0
    _, tasks = asked.api("tasks", filter="version == 0", order="most", limit=1)
    assert tasks["total"] == 4 and tasks["tasks"][0]["groups"] == 3


def test_what_is_wrong_in_a_request_is_said_in_one_line(asked):
    for name, query, words in (
        ("groups", {"filter": "__import__('os')"}, "a call is not supported"),
        ("groups", {"filter": "colour == 1"}, "unknown name 'colour'"),
        ("groups", {"limit": "-1"}, "limit '-1'"),
        ("tasks", {"order": "best"}, "order 'best'"),
    ):
        status, body = asked.api(name, **query)
        assert status == 400 and words in body["error"]
    assert asked.api("group", id="g9")[0] == asked.api("nothing")[0] == 404


def test_a_damaged_group_is_named_and_the_others_are_shown(asked, store):
    with store.write() as txn:
        txn._raw.put(b"g0000000003", b"x" * 40, db=txn._tables["group"])
    status, body = asked.api("group", id="g0000000003")
    assert status == 500 and "is damaged" in body["error"]
    assert asked.api("group", id="g0000000004")[0] == 200


def test_what_a_running_service_writes_is_seen(asked, store):
    before = asked.api("run")[1]["change"]
    asked.viewer.catalogue._next = 0.0
    with store.write() as txn:
        txn.put_row(txn.row("g0000000040").with_changes(state="expired", cause="stale"))
    assert asked.api("run")[1]["change"] > before
    assert asked.api("groups", filter="cause == 'stale'")[1]["total"] == 1


def test_a_store_that_a_service_owns_is_followed(served, client, tasks, done, serve_store):
    reading = Store(served.folder, map_gib=None, read_only=True)
    asked = serve_store(reading)
    assert asked.api("groups")[1]["total"] == 0
    client.add_tasks(tasks(1))
    lease = client.lease("a", 0, GroupPlan(2))
    asked.viewer.catalogue._next = 0.0
    assert asked.api("run")[1]["states"] == {"train": {"leased": 1}}
    client.put(lease.group_id, "a", done(reward=1.0))
    asked.viewer.catalogue._next = 0.0
    assert asked.api("groups", filter="state == 'filling'")[1]["groups"][0]["resolved"] == 1
    shown = asked.api("group", id=lease.group_id)[1]
    assert [pair["base"] and pair["base"]["reward"] for pair in shown["pairs"]] == [1.0, None]
    reading.close()


def test_a_store_that_was_moved_away_is_said(asked, store):
    (store.folder / "data.mdb").rename(store.folder / "away")
    status, body = asked.api("run")
    assert status == 400 and "was moved or deleted" in body["error"]


def test_a_port_in_use_is_one_line(asked):
    port = asked.viewer.server_address[1]
    with pytest.raises(UserError, match=f"^--port {port}: in use"):
        Viewer(asked.viewer.viewed, port)


def test_a_browser_that_leaves_is_no_error(asked, capfd):
    with socket.create_connection(asked.viewer.server_address) as left:
        left.sendall(b"GET / HT")
    assert asked.api("run")[0] == 200
    assert "Traceback" not in capfd.readouterr().err


def test_the_viewer_only_reads(tmp_path, serve_store):
    written = Store(tmp_path / "buffer", map_gib=0.25)
    stores.write(written, 5)
    written.close()
    before = (tmp_path / "buffer" / "data.mdb").read_bytes()
    reading = Store(tmp_path / "buffer", read_only=True)
    asked = serve_store(reading)
    assert asked.api("group", id="g0000000001")[0] == asked.api("tasks")[0] == 200
    assert (tmp_path / "buffer" / "data.mdb").read_bytes() == before
    reading.close()


def test_slow_clients_take_no_more_threads_than_the_limit(asked):
    with contextlib.ExitStack() as stack:
        before = threading.active_count()
        for _ in range(99):
            client = stack.enter_context(socket.socket())
            client.connect(asked.viewer.server_address)
            client.send(b"GET /")
        time.sleep(0.3)
        assert threading.active_count() <= before + asked.viewer.most_connections
