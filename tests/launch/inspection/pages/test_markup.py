"""The elements of a page."""

import pytest

from launch.inspection.pages.markup import (
    TEXT,
    Html,
    element,
    escaped,
    facts,
    folded,
    grid,
    joined,
    listed,
    long_text,
    page,
    paragraph,
    section,
)
from r3l.text import printable
from tests.launch.inspection.pages.html import read

HOSTILE = (
    "<script>alert(1)</script>",
    "</style></head><img src=x onerror=alert(1)>",
    '" onmouseover="alert(1)',
    "' autofocus onfocus='alert(1)",
    "<!--",
    "]]><svg/onload=alert(1)>",
    "&lt;script&gt;",
    "<a href=javascript:alert(1)>x</a>",
    "\u202egnp.exe\x00\x1b[2J\ud800",
    "</title><base href=//x>",
)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_text_is_only_text_wherever_it_stands(text):
    shown = read(
        page(
            text,
            element("b", text, title=text, class_=text),
            section(text, text),
            facts([(text, text)]),
            grid([text], [[text]]),
            folded(text, text),
            listed([text]),
            paragraph(text, faint=True),
            long_text(text),
            long_text(text, "assistant"),
            joined(text),
            text,
        )
    )

    assert shown.text.count(printable(text)) >= 12


def test_markup_is_kept_and_everything_else_is_escaped():
    assert escaped(Html("<b>")) == "<b>" and escaped("<b>") == "&lt;b&gt;"
    assert element("p", "a & b", element("b", 1)) == "<p>a &amp; b<b>1</b></p>"
    assert element("line", x1=1, text_anchor="end") == '<line x1="1" text-anchor="end"></line>'


def test_empty_facts_are_left_out_and_a_long_text_says_what_is_cut():
    assert "model" not in facts([("model", ""), ("seed", 0)])
    assert "(5 more characters)" in long_text("x" * (TEXT + 5))


def test_a_page_allows_its_own_style_and_nothing_else():
    written = page("t").decode()
    assert "default-src 'none'; style-src 'sha256-" in written and "http" not in written.replace(
        "http-equiv", ""
    )
