"""The page: one HTML file with its style and script.

Trajectories may be hostile, so the script shows them only as text. The page's policy allows no
other style or script, and no requests to other servers.
"""

import base64
import hashlib
from pathlib import Path
from typing import Any

import msgspec

PAGE = Path(__file__).parent / "page.html"


def policy() -> str:
    """Returns the page's Content-Security-Policy, which allows its style and script by hash."""
    text, sources = page_html(), []
    for tag in ("style", "script"):
        inside = text.partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
        hashed = hashlib.sha256(inside.encode()).digest()
        sources.append(f"{tag}-src 'sha256-{base64.b64encode(hashed).decode()}'")
    return "; ".join(
        ("default-src 'none'", *sources, "connect-src 'self'", "img-src data:", "base-uri 'none'",
         "form-action 'none'")
    )  # fmt: skip


def page_html() -> str:
    """Returns the page's HTML."""
    return PAGE.read_text(encoding="utf-8")


def as_json(value: Any) -> bytes:
    """Encodes a value as JSON. Non-finite numbers become null, bytes become base64."""
    return msgspec.json.encode(value)
