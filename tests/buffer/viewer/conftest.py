"""Stores, and viewers of them."""

import http.client
import json
import threading
from urllib.parse import urlencode

import pytest
from msgspec import to_builtins

from buffer.storage.store import Store
from buffer.viewer.evaluation_catalogue import RESULTS
from buffer.viewer.view_command import view_of
from buffer.viewer.web_server import Viewer
from r3l.run.files import json_lines
from tests.buffer.viewer import stores
from tests.learner.evaluation.fakes import attempted, turn


@pytest.fixture
def store(tmp_path):
    """A store of 40 groups of 4 tasks, without a run around it."""
    store = Store(tmp_path / "run" / "buffer", map_gib=0.25)
    stores.write(store, 40, tasks=4)
    yield store
    store.close()


class Asked:
    """A viewer that serves in a thread."""

    def __init__(self, shown):
        self.viewer = Viewer(shown, 0)
        self.thread = threading.Thread(target=self.viewer.serve_forever, daemon=True)
        self.thread.start()

    def get(self, path, host=None):
        """(status, headers, body) of a path as it is written."""
        port = self.viewer.server_address[1]
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
        reply = connection.getresponse()
        body = reply.read()
        connection.close()
        return reply.status, reply.headers, body

    def api(self, name, **query):
        status, _, body = self.get(f"/{self.viewer.key}/api/{name}?{urlencode(query)}")
        return status, json.loads(body)

    def close(self):
        self.viewer.shutdown()
        self.viewer.server_close()
        self.thread.join(60)


@pytest.fixture
def show():
    """Starts viewers."""
    started = []

    def start(shown):
        started.append(Asked(shown))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def serve_store(show):
    """Starts viewers of stores."""
    return lambda store: show(view_of(store, store.folder.parent))


@pytest.fixture
def evaluation(tmp_path):
    """A folder in which two tasks were attempted twice; one attempt failed."""
    folder = tmp_path / "evaluation"
    folder.mkdir()
    said = turn("a door", "open it", 5, 1.0), turn("a hall", "walk on", 7)
    for one in (
        attempted("door/1", 1, "doors", 0.25, steps=said[:1], last="it is shut"),
        attempted("door/0", 0, "doors", 1.0, steps=said, oldest_version=40),
        attempted("door/1", 0, "doors", cause="environment_hang"),
        attempted("door/0", 1, "doors", 0.5, steps=said, oldest_version=40, last="it is over"),
    ):
        json_lines.append(folder / RESULTS, to_builtins(one))
    return folder


@pytest.fixture
def asked(store, serve_store):
    """A viewer of `store`."""
    return serve_store(store)
