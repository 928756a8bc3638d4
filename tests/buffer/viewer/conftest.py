"""Stores, and viewers of them."""

import http.client
import json
import threading
from urllib.parse import urlencode

import pytest

from buffer.storage.store import Store
from buffer.viewer.view_command import viewed
from buffer.viewer.web_server import Viewer
from tests.buffer.viewer import stores


@pytest.fixture
def store(tmp_path):
    """A store of 40 groups of 4 tasks, without a run around it."""
    store = Store(tmp_path / "run" / "buffer", map_gib=0.25)
    stores.write(store, 40, tasks=4)
    yield store
    store.close()


class Asked:
    """A viewer that serves in a thread."""

    def __init__(self, store):
        self.viewer = Viewer(viewed(store, store.folder.parent), 0)
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
def serve_store():
    """Starts viewers of stores."""
    started = []

    def start(store):
        started.append(Asked(store))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture
def asked(store, serve_store):
    """A viewer of `store`."""
    return serve_store(store)
