"""The page that the viewer serves."""

import base64
import hashlib
import re

from buffer.viewer import page


def test_the_policy_allows_the_page_its_own_style_and_script_and_nothing_else():
    text, policy = page.page_html(), page.policy()
    for tag, kind in (("style", "style-src"), ("script", "script-src")):
        inside = re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL)[1]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{kind} 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; ") and "unsafe" not in policy


def test_the_page_asks_nobody_else():
    text = page.page_html().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?:|//cdn|@import|url\(", text)


def test_the_script_never_writes_html():
    text = page.page_html()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacent",
        "document.write",
        "eval(",
        "Function(",
    ):
        assert word not in text


def test_numbers_that_json_has_not_are_null():
    assert page.as_json([float("nan"), float("-inf"), 1.5]) == b"[null,null,1.5]"
