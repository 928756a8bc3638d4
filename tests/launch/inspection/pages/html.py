"""Reads a page as a browser does."""

from html.parser import HTMLParser

VOID = {"meta", "br"}
OURS = set(
    "html head meta title style body h1 h2 h3 p ul li table tr th td section div b span details "
    "summary article figure figcaption svg line text polyline polygon circle".split()
)


class Page(HTMLParser):
    """A page's elements and text. `open`: elements without an end."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags, self.attributes, self.open = set(), set(), []
        self.text = ""
        self.feed(page.decode("utf-8"))
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += data


def read(page: bytes) -> Page:
    """Parses a page. Nothing in it may run, load or send anything."""
    shown = Page(page)
    assert not shown.open and shown.tags <= OURS, shown.tags - OURS
    wrong = {name for name in shown.attributes if name.startswith("on") or name in ("href", "src")}
    assert not wrong, wrong
    return shown
