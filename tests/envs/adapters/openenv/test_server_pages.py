"""What servers say over HTTP, and those that lie about it."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from envs.adapters.openenv import server_pages
from envs.adapters.openenv.server_pages import description_of, page, schemas_of, tasks_of
from r3l.errors import UserError

SCHEMAS = {"action": {}, "observation": {}, "state": {}}


@pytest.fixture
def site() -> Iterator[Any]:
    """Shows pages, by path; a number is an error."""
    pages = dict[str, Any]()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = self.rfile.read(int(self.headers.get("content-length", 0)))
            shown = pages.get(self.path, 404)
            if isinstance(shown, dict) and asked:
                shown = shown | {"asked": json.loads(asked)}
            body = shown if isinstance(shown, bytes) else json.dumps(shown).encode()
            self.send_response(shown if isinstance(shown, int) else 200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield pages, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (500, "no OpenEnv server answers: /schema answers 500; start"),
        (404, "no OpenEnv server answers: /schema is missing; start"),
        (b"<html>", "no OpenEnv server answers: /schema is not JSON; start"),
        (b"[" * 100_000, "no OpenEnv server answers: /schema is not JSON; start"),
        (b" " * (1 << 21), "its /schema is larger or slower than 1 MiB in 10 s"),
        ({}, "its /schema has no action; it must be a server of openenv 0.3 or later"),
        (SCHEMAS | {"observation": 3}, "its /schema has no observation; it must"),
        ({"action": {}, "observation": {}}, "its /schema has no state; it must"),
        ([SCHEMAS], "its /schema has no action; it must"),
    ],
)
def test_a_server_without_schemas_is_refused_in_one_line(site: Any, shown: Any, why: str) -> None:
    pages, url = site
    pages["/schema"] = shown
    with pytest.raises(UserError) as refused:
        schemas_of("openenv:x", url)
    assert str(refused.value).startswith(f"env openenv:x: {why}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:8000", "http://", "http://[:1"])
def test_a_wrong_address_is_refused_in_one_line(url: str) -> None:
    with pytest.raises(UserError, match=r"no OpenEnv server answers: /schema does not answer"):
        schemas_of("openenv:x", url)


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\n\r\n"], ids=["head", "body"])
def test_a_server_that_sends_a_byte_now_and_then_is_refused_in_time(
    head: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each byte comes within the limit of one read, in the head or in the body."""
    monkeypatch.setattr(server_pages, "PAGE_S", 0.5)
    ended = threading.Event()

    def drip(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection, suppress(OSError):
            connection.recv(1000)
            connection.sendall(head)
            for byte in b"HTTP/1.1 200 OK\r\nserver: " + b"x" * 200:
                connection.sendall(bytes([byte]))
                if ended.wait(0.1):
                    return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=drip, args=[server], daemon=True)
        thread.start()
        with pytest.raises(UserError) as refused:
            page("openenv:x", f"http://127.0.0.1:{server.getsockname()[1]}", "/schema")
        ended.set()
        thread.join(10)
    assert "in 0.5 s" in str(refused.value) and "\n" not in str(refused.value)


def test_a_page_that_is_not_offered_is_none(site: Any) -> None:
    pages, url = site
    pages["/a"] = 501
    assert page("x", url, "/a") is None and page("x", url, "/b") is None


def test_a_description_is_one_line_and_says_more_than_the_name(site: Any) -> None:
    pages, url = site
    assert description_of("x", url) == ""
    pages["/metadata"] = {"name": "Words", "description": "Words environment"}
    assert description_of("x", url) == ""
    pages["/metadata"] = {"name": "Words", "description": "Say\n it."}
    assert description_of("x", url) == "Say it."
    pages["/metadata"] = [1]
    assert description_of("x", url) == ""


def test_the_tasks_of_a_split_are_its_indices(site: Any) -> None:
    pages, url = site
    with pytest.raises(UserError, match="has no splits of tasks; leave out"):
        tasks_of("openenv:x", url, {"train": "easy"})
    pages |= {
        "/list_environments": ["words"],
        "/words/splits": [{"name": "easy", "type": "train"}, {"name": "test", "type": "test"}],
        "/words/num_tasks": {"num_tasks": 3},
    }
    listed = tasks_of("openenv:x", url, {"train": "easy", "eval": "test"})
    tasks = listed.tasks("train", 10)
    assert sorted(task.task_id for task in tasks) == [f"openenv:x/easy/00000{n}" for n in range(3)]
    assert all(task.options == {"split": "easy", "index": task.seed} for task in tasks)
    assert len(listed.tasks("eval", 2)) == 2 and listed.tasks("warmup", 2) == []
    with pytest.raises(UserError, match="has no split 'hard'; it has easy, test"):
        tasks_of("openenv:x", url, {"train": "hard"})
    with pytest.raises(UserError, match="splits: test is not a split; use warmup, train, eval"):
        tasks_of("openenv:x", url, {"test": "test"})
    pages["/words/num_tasks"] = {"num_tasks": "many"}
    with pytest.raises(UserError, match="its split 'easy' has 'many' tasks"):
        tasks_of("openenv:x", url, {"train": "easy"})
