"""The world `workshop`: a row of stations. Each station has an item, which needs one tool.

A wrong tool spoils the item. By default, the next line says which tool the item needed. The work
continues and is judged only at the end. A retry can start from the wrong step.
"""

from envs.builtin.matching import Dials, Hint, Matching, Summary, Words

THOUGHT = (
    "say first what this task is and which decision must be done before an answer did succeed "
    "try over again from the same thing as in one earlier attempt or change when nothing else "
    "happens here why should all of them that was kept by yourself instead not act on everything "
    "naming how few sentences mention next object to decide numbered log for review"
)
"""64 words of thought. All differ, so that each word determines the word after it."""


class Workshop(Matching):
    """A row of stations. `items`, `tools`: how many the world has. `exceptions`: number of stations
    whose item is in the note. `steps`: step limit (default: `stations` + 2). `decisive`: number of
    stations that count for success (default: all). `words`, `summary`, `hint`: see Dials."""

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
        wrong_where="it spoils.",
        done="it is done.",
        thought=THOUGHT,
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
        words: int = 0,
        summary: Summary = "full",
        hint: Hint = "what",
        decisive: int | None = None,
    ) -> None:
        super().__init__(
            "workshop",
            "Each item needs one tool: {answers}. Answer use and a tool, or look.",
            length=("stations", stations),
            things=("items", items),
            answers=("tools", tools),
            exceptions=exceptions,
            steps=steps,
            decisive=decisive,
            dials=Dials(words, summary, hint),
        )
