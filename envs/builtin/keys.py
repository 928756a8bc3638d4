"""The world `keys`: a row of coloured locks. A wrong key jams its lock and ends the attempt."""

from envs.builtin.matching import Matching, Words


class Keys(Matching):
    """A row of locks. `colours`, `keys`: how many the world has. `exceptions`: how many locks the
    note names. `steps`: step limit, by default locks + 2."""

    words = Words(
        things="red blue green white black yellow purple orange pink grey",
        answers="brass iron bone glass wooden silver",
        place="lock",
        verb="turn",
        waste="listen",
        right="it opens.",
        wrong="it jams, {thing} needs {need}.",
        wasted="all is quiet.",
        marks={"right": "opens", "wrong": "jams", "wasted": "wasted"},
    )
    wrong_ends = True

    def __init__(
        self,
        *,
        locks: int = 3,
        colours: int = 8,
        keys: int = 4,
        exceptions: int = 1,
        steps: int | None = None,
    ) -> None:
        super().__init__(
            "keys",
            "Each lock needs one key: {answers}. Answer turn and a key, or listen.",
            length=("locks", locks),
            things=("colours", colours),
            answers=("keys", keys),
            exceptions=exceptions,
            steps=steps,
        )
