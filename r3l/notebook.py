"""HTML of records for a notebook: short, and every text in it escaped.

Attempts are hostile text. It is shown inside <pre>, in which a notebook typesets no formulas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

LONGEST_TEXT = 3000  # characters of one text that are shown
BORDER = "border-left:3px solid {};padding-left:.6em;margin:.3em 0"
PRE = "white-space:pre-wrap;margin:0;background:none;color:inherit;opacity:{}"


class Html(str):
    """Text that is HTML already and is not escaped again."""


def shown(value: object) -> Html:
    """A value as HTML: a number with three digits, a text escaped and cut to LONGEST_TEXT."""
    if isinstance(value, Html):
        return value
    text = f"{value:.3g}" if isinstance(value, float) else str(value)
    more = len(text) - LONGEST_TEXT
    return Html(escape(text[:LONGEST_TEXT] + (f" … {more} more characters" if more > 0 else "")))


def card(title: str, facts: Mapping[str, object], *inside: Html) -> Html:
    """A titled block: facts in a line, without those that are None or "", and what is inside."""
    told = [f"{shown(k)} <b>{shown(v)}</b>" for k, v in facts.items() if v is not None and v != ""]
    head = f"<div><b>{shown(title)}</b> &nbsp; {' &middot; '.join(told)}</div>"
    return Html(f'<div class="tex2jax_ignore mathjax_ignore">{head}{"".join(inside)}</div>')


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> Html:
    """Rows of values under their names."""
    lines = ["".join(f"<th>{shown(name)}</th>" for name in head)]
    lines += ["".join(f"<td>{shown(value)}</td>" for value in row) for row in rows]
    return Html("<table>" + "".join(f"<tr>{line}</tr>" for line in lines) + "</table>")


def folded(title: str, inside: str) -> Html:
    """What is shown after a click on the title."""
    return Html(f"<details><summary>{shown(title)}</summary>{shown(inside)}</details>")


def text(label: str, value: str, *, marked: bool = False) -> Html:
    """A text under its label, with a green edge if it is marked, else grey."""
    edge, opacity = ("#2a2", 1) if marked else ("#888", 0.75)
    return Html(
        f'<div style="{BORDER.format(edge)}"><small>{shown(label)}</small>'
        f'<pre style="{PRE.format(opacity)}">{shown(value)}</pre></div>'
    )
