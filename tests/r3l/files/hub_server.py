"""A server that answers as Hugging Face's hub does, as far as huggingface_hub asks it."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

COMMIT = "c0ffee" + "0" * 34
PLACE = re.compile(r"/(?:api/)?(?:models/|(datasets)/)?([\w.-]+/[\w.-]+)/(revision|tree|resolve)/"
                   r"([^/?]+)(?:/([^?]*))?(?:\?.*)?")  # fmt: skip


@dataclass
class Hub:
    """The server's repositories: their files, by kind ("" or "datasets") and name.

    `gated`: names for which nobody has access. `asked`: every path that was asked for. `broken`:
    files whose download ends in the middle.
    """

    files: dict[tuple[str, str], dict[str, bytes]] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    broken: set[str] = field(default_factory=set)
    asked: list[str] = field(default_factory=list)
    address: str = ""

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        """The status, headers and body of an answer."""
        found = PLACE.fullmatch(path)
        if found is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        kind, name, what, revision, file = found.groups()
        files = self.files.get((kind or "", name))
        if files is None:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if name in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        if revision not in ("main", COMMIT):
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        if what == "resolve":
            if file not in files:
                return 404, {"X-Error-Code": "EntryNotFound"}, b"{}"
            etag = hashlib.sha1(files[file]).hexdigest()
            return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, files[file]
        listed = [
            {"type": "file", "path": each, "rfilename": each, "size": len(content),
             "oid": hashlib.sha1(content).hexdigest()}
            for each, content in files.items()
        ]  # fmt: skip
        if what == "tree":
            return 200, {}, json.dumps(listed).encode()
        info = {"id": name, "modelId": name, "sha": COMMIT, "siblings": listed, "tags": []}
        return 200, {}, json.dumps(info).encode()


@contextlib.contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    """Serves `hub` at `hub.address`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            hub.asked.append(self.path)
            status, headers, body = hub.answer(self.path)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                cut = any(self.path.endswith(name) for name in hub.broken)
                self.wfile.write(body[: len(body) // 2] if cut else body)
                self.close_connection = cut

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hub.address = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
