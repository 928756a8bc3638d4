"""The page: one HTML file with its style and script, served, or written with its data inside.

Trajectories are hostile text: the script shows them as text only, and the page's policy allows no
script, style or request but its own.
"""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import msgspec

PAGE = Path(__file__).parent / "page.html"
DATA = '<script type="application/json" id="data"></script>'
POLICY = '<meta name="policy">'


def policy() -> str:
    """The Content-Security-Policy of the page: its one style and script, by their hashes."""
    text = PAGE.read_text(encoding="utf-8")
    sources = [
        f"{kind}-src '{_hash(re.search(rf'<{tag}>(.*?)</{tag}>', text, re.DOTALL))}'"
        for kind, tag in (("style", "style"), ("script", "script"))
    ]
    return "; ".join(
        ("default-src 'none'", *sources, "connect-src 'self'", "img-src data:", "base-uri 'none'",
         "form-action 'none'")
    )  # fmt: skip


def served() -> str:
    """The page that asks its server for data."""
    return PAGE.read_text(encoding="utf-8").replace(POLICY, "")


def with_data(data: Any) -> str:
    """The page with its data inside: a file that needs no server."""
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy()}">'
    inside = as_json(data).decode().replace("<", "\\u003c")  # so that no text ends the element
    page = PAGE.read_text(encoding="utf-8").replace(POLICY, meta)
    return page.replace(DATA, DATA.replace("><", f">{inside}<"))


def as_json(value: Any) -> bytes:
    """JSON; numbers that are not finite are null, bytes base64."""
    return msgspec.json.encode(value)


def _hash(found: re.Match[str] | None) -> str:
    assert found is not None
    digest = hashlib.sha256(found[1].encode()).digest()
    return "sha256-" + base64.b64encode(digest).decode()
