"""Writes HTML that opens without a server, a script or a network.

Policies write the texts of a page, so every text is escaped: `element` escapes everything that is
not already `Html`, and shows invisible characters as their codes. The page's policy allows its own
style, and nothing else.
"""

import base64
import hashlib
from collections.abc import Iterable, Sequence
from html import escape

from r3l.text import printable

TEXT = 3000
"""Characters of one text that are shown."""
STYLE = """
:root { color-scheme: light dark; --ink: #1a202c; --paper: #fff; --soft: #f4f5f7; --line: #cbd5e0;
  --faint: #626f86; --c0: #c05621; --c1: #2b6cb0; --c2: #2c7a7b; --c3: #805ad5; }
@media (prefers-color-scheme: dark) { :root { --ink: #e2e8f0; --paper: #16191f; --soft: #20252d;
  --line: #3d4653; --faint: #a0aec0; --c0: #ed8936; --c1: #63b3ed; --c2: #4fd1c5; --c3: #b794f4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1200px; padding: 16px; background: var(--paper);
  color: var(--ink); font: 15px/1.45 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 24px; margin: 8px 0; } h2 { font-size: 19px; margin: 32px 0 8px; }
h3 { font-size: 15px; margin: 20px 0 6px; } p { margin: 6px 0; }
.faint, figcaption { color: var(--faint); font-size: 13px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; }
td, th { border-bottom: 1px solid var(--line); padding: 3px 10px 3px 0; text-align: left;
  vertical-align: top; font-variant-numeric: tabular-nums; }
th { font-weight: 600; overflow-wrap: break-word; }
table.facts th { min-width: 110px; max-width: 220px; }
table.facts td { width: 100%; } table.grid th, table.grid td { white-space: nowrap; }
.charts { display: grid; gap: 16px;
  grid-template-columns: repeat(auto-fill, minmax(min(340px, 100%), 1fr)); }
figure { margin: 0; min-width: 0; } figure h3 { margin: 8px 0 2px; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--faint); font-size: 12px; }
.grid-line { stroke: var(--line); stroke-width: 0.6; }
polyline { fill: none; stroke-width: 1.8; } .raw { stroke-width: 0.8; opacity: 0.35; }
.band { opacity: 0.18; stroke: none; }
.s0 { stroke: var(--c0); } .s1 { stroke: var(--c1); }
.s2 { stroke: var(--c2); } .s3 { stroke: var(--c3); }
.f0 { fill: var(--c0); } .f1 { fill: var(--c1); }
.f2 { fill: var(--c2); } .f3 { fill: var(--c3); }
.t0 { color: var(--c0); } .t1 { color: var(--c1); }
.t2 { color: var(--c2); } .t3 { color: var(--c3); }
.pair { display: grid; gap: 12px;
  grid-template-columns: repeat(auto-fit, minmax(min(320px, 100%), 1fr)); }
.side { min-width: 0; border: 1px solid var(--line); border-radius: 6px; padding: 8px 12px; }
.text { white-space: pre-wrap; font: 13px/1.4 ui-monospace, monospace; unicode-bidi: isolate;
  margin: 2px 0 8px; }
.assistant { background: var(--soft); border-left: 3px solid var(--c1); padding: 4px 8px; }
details { margin: 8px 0; } summary { cursor: pointer; }
@media print { details { display: block; } figure, .pair { break-inside: avoid; } }
"""


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def escaped(value: object) -> Html:
    """Escapes a value's text, unless it is `Html`."""
    return value if isinstance(value, Html) else Html(escape(printable(str(value))))


def element(name: str, *inside: object, **attributes: object) -> Html:
    """Returns an element. Escapes its content and the values of its attributes. `class_` is the
    attribute `class`; in other names, `_` stands for `-`."""
    named = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"'
        for key, value in attributes.items()
    )
    return Html(f"<{name}{named}>{joined(*inside)}</{name}>")


def joined(*parts: object) -> Html:
    """Puts parts one after another. Escapes those that are not `Html`."""
    return Html("".join(map(escaped, parts)))


def section(title: str, *inside: object) -> Html:
    return element("section", element("h2", title), *inside)


def paragraph(*inside: object, faint: bool = False) -> Html:
    return element("p", *inside, class_="faint") if faint else element("p", *inside)


def listed(items: Iterable[object]) -> Html:
    return element("ul", *(element("li", item) for item in items))


def facts(rows: Iterable[tuple[str, object]]) -> Html:
    """Returns a table of names and values. Leaves out empty values."""
    shown = [(name, value) for name, value in rows if str(value)]
    cells = (element("tr", element("th", name), element("td", value)) for name, value in shown)
    return element("table", *cells, class_="facts")


def grid(head: Sequence[object], rows: Iterable[Sequence[object]]) -> Html:
    """Returns a table with a head. A table that is too wide is scrolled by itself."""
    lines = [element("tr", *(element("th", cell) for cell in head))]
    lines += [element("tr", *(element("td", cell) for cell in row)) for row in rows]
    return element("div", element("table", *lines, class_="grid"), class_="wide")


def folded(summary: str, *inside: object) -> Html:
    """Returns an element that shows `summary`, and shows the rest after a click."""
    return element("details", element("summary", summary), *inside)


def long_text(text: str, kind: str = "") -> Html:
    """Returns a text with its line breaks, cut after TEXT characters with a note."""
    if len(text) > TEXT:
        text = f"{text[:TEXT]}… ({len(text) - TEXT:,} more characters)"
    return element("div", text, class_=f"text {kind}".strip())


def page(title: str, *body: object) -> bytes:
    """Returns a whole page in UTF-8."""
    hashed = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{hashed}'; base-uri 'none'; form-action 'none'"
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escaped(title)}</title><style>{STYLE}</style></head>"
    )
    return f"{head}<body>{joined(*body)}</body></html>\n".encode()
