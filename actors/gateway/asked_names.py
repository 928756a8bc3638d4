"""Counts the model names that agents use for the policy, and warns if a name may be meant for
another model.

An agent that somebody else wrote may ask for any model name: the policy answers. A second name may
stand for another model, such as a judge, whose replies should not train the policy. Only the
settings can decide that (actor.agent.models).
"""

import json
import re

from actors.dialects.chat_completions import MODEL, UNTRAINED
from actors.gateway.session import Session
from r3l.notices import notice

MOST_NAMES, LONGEST = 16, 64
"""How many names an actor counts one by one, and the most characters of a name."""
OTHERS = "others"
"""Counts all further names."""


class AskedNames:
    """The model names that an actor's agents use for the policy."""

    def __init__(self) -> None:
        self.known = {MODEL, UNTRAINED}
        self.said: set[frozenset[str]] = set()

    def note(self, session: Session, name: str) -> None:
        """Counts a call. `name`: MODEL or UNTRAINED if r3l or a setting decides what the name
        means. Tells the user once if an agent asks for a second name whose meaning nothing
        decides."""
        name = self._counted(name)
        session.metrics.asked[name] += 1
        if name == UNTRAINED or name in session.names:
            return
        session.names.add(name)
        session.metrics.agent["second_models"] += len(session.names) == 2
        names = frozenset(session.names)
        if len(names) > 1 and names not in self.said and len(self.said) < MOST_NAMES:
            self.said.add(names)
            _say(names)

    def _counted(self, name: str) -> str:
        """Returns the name that stands for a model's name in the counts."""
        name = re.sub(r"[^\w.:@/+-]", "_", name, flags=re.ASCII)[:LONGEST]
        if name not in self.known and len(self.known) >= MOST_NAMES:
            return OTHERS
        self.known.add(name)
        return name


def _say(names: frozenset[str]) -> None:
    undecided = sorted(names - {MODEL, OTHERS}) or [OTHERS]
    setting = ", ".join(f"{json.dumps(name)}: policy" for name in undecided)
    notice(
        f"an agent asks for the models {' and '.join(sorted(names))}: the policy answers all, and "
        f"is trained on all; set 'actor.agent.models={{{setting}}}', and for each model that must "
        "not be trained write policy-untrained, or a server's URL, in place of policy"
    )
