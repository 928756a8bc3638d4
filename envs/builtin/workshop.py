"""The workshop: a row of stations; each shows an item, and one tool fits it.

A wrong tool spoils the item and the next line says what it needed, but the work continues and is
judged only at the end. So the failing step lies before the end, and a retry can start there.
"""

from __future__ import annotations

from envs.builtin.matching import Matching, Words


class Workshop(Matching):
    """A row of stations. `stations`: in the row; `items`, `tools`: in the world; `exceptions`: per
    attempt; `steps`: limit (default: two more than stations)."""

    words = Words(
        things="tin lamp rope vase boot drum clock chair kite mirror basket anchor "
        "bell cup door engine fence glove",
        answers="brush saw glue file drill torch clamp sponge",
        place="station",
        verb="use",
        waste="look",
        right="it fits.",
        wrong="it spoils, {thing} needs {need}.",
        wasted="nothing happens.",
        marks={"right": "fits", "wrong": "spoils", "wasted": "wasted"},
    )
    wrong_ends = False

    def __init__(
        self,
        *,
        stations: int = 5,
        items: int = 12,
        tools: int = 6,
        exceptions: int = 1,
        steps: int | None = None,
    ) -> None:
        super().__init__(
            "workshop",
            "Each item needs one tool: {answers}. Answer use and a tool, or look.",
            length=("stations", stations),
            things=("items", items),
            answers=("tools", tools),
            exceptions=("exceptions", exceptions),
            steps=("steps", steps),
        )
