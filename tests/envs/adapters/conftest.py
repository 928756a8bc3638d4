"""A tiny shop as a WebShop checkout; tests that need it skip without bm25s."""

import os
from pathlib import Path

import pytest

from tests.envs.adapters.shop import checkout

UPSTREAM = os.environ.get("R3L_WEBSHOP", "")


@pytest.fixture(scope="module", params=["stand-in", "upstream"])
def shop(request, tmp_path_factory):
    """The folder of a checkout with the tiny catalogue."""
    pytest.importorskip("bm25s", reason="pip install 'r3l[webshop]'")
    if request.param == "upstream" and not UPSTREAM:
        pytest.skip("R3L_WEBSHOP names no checkout of princeton-nlp/WebShop")
    upstream = Path(UPSTREAM).expanduser() if request.param == "upstream" else None
    return checkout(tmp_path_factory.mktemp("webshop") / "checkout", upstream)
