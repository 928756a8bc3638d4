"""WebShop: shopping on a simulated web site (Yao et al. 2022, arXiv:2207.01206; code MIT). Needs
`pip install 'r3l[webshop]'`, and princeton-nlp/WebShop with its data.

A step is one action: search[words] on a page with a search bar, or click[something on the page].
The purchase ends the attempt. The reward is upstream's score from 0 to 1, which depends on the
kind of product, its attributes, its options and its price.
"""

import itertools
import re
from typing import Any

from envs.adapters import webshop_site
from envs.adapters.action_tags import HOW_TO_ANSWER, NO_ACTION, action_in
from envs.adapters.webshop_site import Settings, open_site, seeded
from envs.base import ListedTasks, TaskSource
from r3l.errors import EnvironmentFailed
from r3l.records import Task
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

SYSTEM = (
    "You shop on a web site for what the instruction asks for: the right kind of product, with "
    "every attribute and option it names, at a price below its limit. search[words] looks for "
    "products; it works only on the start page, which click[back to search] brings back. "
    "click[...] presses a button, opens a product by its number or chooses an option, by the "
    "words that stand on the page. click[buy now] buys what is open with the options chosen, and "
    "ends the attempt. The score says how much of what was asked for was bought. "
    + HOW_TO_ANSWER.format(example="search[red cotton shirt]")
)
PROMPTS = {
    "reflect_user": "{log}\nReward {reward}. Steps are numbered 0 to {last_step}; "
    "retry_from_step must be one of them or null. The score does not say what was missing: "
    "compare what was bought, its options and its price with the instruction, or find where "
    "the search left out a word that matters or a better product on the page was passed by."
}
LONGEST = 4000
"""The policy sees at most this many characters of a page's text."""
PAGES = 5
"""Number of pages of search results: upstream shows 50 products, ten per page."""
_ACTION = re.compile(r"(search|click)\s*\[(.*)\]", re.IGNORECASE | re.DOTALL)
_SEPARATOR = "[SEP]"


class WebShop:
    """Plays the goals of the folder `checkout`, by default $WEBSHOP.

    `products`: how many of the checkout's products to use (0: all); `goals`: synthetic or human;
    `admissible`: end every page with the possible actions; `max_steps`: action limit.
    """

    def __init__(
        self,
        *,
        checkout: str = "",
        products: int = 1000,
        goals: str = "synthetic",
        admissible: bool = True,
        max_steps: int = 15,
    ) -> None:
        self.admissible = admissible
        self.site = open_site(Settings(checkout, products, goals))
        self.server = self.site.server
        self.visitor = self.site.browser(str(next(_numbers)))
        self.spec = EnvSpec(
            name="webshop",
            system_prompt=SYSTEM,
            max_steps=max_steps,
            max_response_tokens=512,
            sessions=8,
            prompts=PROMPTS,
        )
        self.clicks: dict[str, str] = {}
        self.can_search, self.score, self.goal = False, -1.0, 0

    @staticmethod
    def task_source(
        checkout: str = "", products: int = 1000, goals: str = "synthetic", **_: Any
    ) -> TaskSource:
        """Lists upstream's test goals for evaluation, and its train goals for training."""
        kinds = webshop_site.categories(Settings(checkout, products, goals))
        test, train = splits(len(kinds))
        return ListedTasks(
            {
                "train": [_task(number, kinds[number]) for number in train],
                "eval": [_task(number, kinds[number]) for number in test],
            }
        )

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Enters the shop with goal `options["goal"]`, by default a train goal chosen by `seed`."""
        _, train = splits(len(self.server.goals))
        goal = int((options or {}).get("goal", train[seed % len(train)]))
        if not 0 <= goal < len(self.server.goals):
            raise EnvironmentFailed(
                f"webshop: goal {goal} does not exist; there are {len(self.server.goals)} goals",
                cause="no_goal",
            )
        self.goal = goal
        self._start()
        return self._page(), self._info()

    def step(self, action: str) -> StepAnswer:
        kind, what = self._parse_action(action)
        if kind == "problem":
            return f"{what}\n{self._possible()}".strip(), 0.0, False, False, self._info()
        browser = self.visitor.browser
        if kind == "search":
            status = browser.search(what)
        else:
            status = browser.click(what, self.visitor.text_to_clickable)
        if not status["done"]:
            return self._page(), 0.0, False, False, self._info()
        self.score = min(max(float(status["reward"]), 0.0), 1.0)
        return self.feedback(), self.score, True, False, {}

    def feedback(self) -> str:
        if self.score < 0:
            return "Nothing was bought."
        bought = f"You bought {self._session['asin'].lower()}"
        chosen = self._chosen()
        options = f" with {chosen}" if chosen else ""
        return f"{bought}{options}. The score is {100 * self.score:.0f} of 100."

    def demonstration(self) -> list[str]:
        """Returns actions that find and buy the goal's product. Tries the actions, then resets the
        attempt. Returns [] if the actions are too many or do not earn the full score."""
        goal = self._session["goal"]
        wanted = goal["goal_options"]
        values = list(wanted.values()) if isinstance(wanted, dict) else list(wanted)
        played = [f"search[{_searchable(goal['name'])}]"]
        product = goal["asin"].lower()
        self.step(played[-1])
        for _ in range(PAGES):
            if product in self.clicks or "next >" not in self.clicks:
                break
            played.append("click[next >]")
            self.step(played[-1])
        rest = [f"click[{value}]" for value in (product, *values, "buy now")]
        earned = [self.step(action)[1] for action in rest][-1]
        self._start()
        whole = [*played, *rest]
        return whole if earned >= 1.0 and len(whole) <= self.spec.max_steps else []

    def close(self) -> None:
        """Deletes the session, which upstream would keep. Leaves the shop open for others."""
        self.server.user_sessions.pop(self.visitor.session, None)

    def _start(self) -> None:
        self.close()
        with seeded():
            self.visitor.reset(session=self.goal)
        self.score = -1.0
        self._read_page()

    @property
    def _session(self) -> dict[str, Any]:
        session: dict[str, Any] = self.server.user_sessions[self.visitor.session]
        return session

    def _parse_action(self, action: str) -> tuple[str, str]:
        """Returns ("search", words), ("click", name on the page) or ("problem", reason)."""
        command = action_in(action)
        if command is None:
            return "problem", NO_ACTION
        match = _ACTION.fullmatch(command)
        if match is None:
            return "problem", "That is not an action: give search[words] or click[something]."
        kind, what = match[1].lower(), match[2]
        if kind == "click":
            name = self.clicks.get(_plain(what))
            return ("click", name) if name else ("problem", "There is nothing like that to click.")
        words = _searchable(what)
        if not self.can_search:
            return "problem", "This page has no search bar; click[back to search] leads to one."
        return ("search", words) if words else ("problem", "A search needs words.")

    def _read_page(self) -> None:
        """Reads which actions the page offers."""
        actions = self.visitor.get_available_actions()
        self.can_search = bool(actions["has_search_bar"])
        # a click on the search button does nothing by itself
        self.clicks = {
            _plain(n): n for n in actions["clickables"] if _plain(n) not in ("", "search")
        }

    def _page(self) -> str:
        self._read_page()
        parts = [part.strip() for part in self.visitor.observation.split(_SEPARATOR)]
        text = f" {_SEPARATOR} ".join(part for part in parts if part)
        if len(text) > LONGEST:
            text = f"{text[:LONGEST]} …"
        chosen = self._chosen()
        lines = [text, f"Chosen: {chosen}." if chosen else "", self._possible()]
        return "\n".join(line for line in lines if line)

    def _possible(self) -> str:
        if not self.admissible:
            return ""
        search = ["search[words]"] if self.can_search else []
        return f"Possible now: {', '.join([*search, *(f'click[{n}]' for n in self.clicks)])}."

    def _info(self) -> dict[str, Any]:
        asked = _searchable(str(self._session["goal"]["instruction_text"]))
        search = [f"search[{asked}]"] if self.can_search else []
        return {"admissible": [*search, *(f"click[{name}]" for name in self.clicks)]}

    def _chosen(self) -> str:
        return ", ".join(f"{name}: {value}" for name, value in self._session["options"].items())


_numbers = itertools.count()


def splits(count: int) -> tuple[range, range]:
    """Returns the indices of the test goals and of the train goals. The first 500 goals are test
    goals, and the next 1,000 are unused. If there are fewer than 5,000 goals, a tenth are test
    goals and a fifth are unused."""
    test = min(500, -(-count // 10))
    return range(test), range(test + min(1000, count // 5), count)


def _task(number: int, category: str) -> Task:
    options = {"goal": number} | ({"family": category} if category else {})
    return Task(f"webshop/{number:06d}", "webshop", number, options)


def _plain(text: str) -> str:
    """Normalizes a name for comparison: lower case, single spaces."""
    return " ".join(text.lower().split())


def _searchable(text: str) -> str:
    """Turns a text into words for the search bar. Removes brackets, since upstream would read <r>,
    for example, as a command."""
    return " ".join(re.sub(r"[<>\[\]]", " ", text.lower()).split())
