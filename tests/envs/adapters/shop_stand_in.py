"""What the adapter needs of WebShop's web_agent_text_env.py, in little: written for tests that
have no checkout of upstream, from upstream's interface. Search, pages, sessions, a simpler score.
"""

import itertools
import json
import random
import string
from collections import defaultdict
from pathlib import Path
from typing import Any

from web_agent_site.utils import DEFAULT_ATTR_PATH, HUMAN_ATTR_PATH

PER_PAGE = 10


def init_search_engine(num_products: int | None = None) -> Any:
    raise NotImplementedError("no Lucene here")


def read(path: str) -> Any:
    return json.loads(Path(path).read_text())


class SimServer:
    def __init__(
        self,
        base_url: str,
        file_path: str,
        num_products: int | None = None,
        human_goals: int = 0,
    ) -> None:
        self.base_url = base_url
        self.all_products = [self._loaded(p) for p in read(file_path)[:num_products]]
        self.product_item_dict = {p["asin"]: p for p in self.all_products}
        self.prices = {p["asin"]: random.uniform(*p["pricing"]) for p in self.all_products}
        self.search_engine = init_search_engine(num_products=num_products)
        self.goals = self._human() if human_goals else self._synthetic()
        random.seed(233)
        random.shuffle(self.goals)
        self.user_sessions: dict[str, dict[str, Any]] = {}

    def _loaded(self, product: dict[str, Any]) -> dict[str, Any]:
        prices = [float(p) for p in product["pricing"].split("$")[1:]]
        return product | {
            "Title": product["name"],
            "Description": product["full_description"],
            "BulletPoints": product["small_description"],
            "pricing": [prices[0], prices[-1]],
            "Attributes": read(DEFAULT_ATTR_PATH)[product["asin"]]["attributes"],
            "options": {
                name.lower(): [c["value"].strip().lower() for c in contents]
                for name, contents in product["customization_options"].items()
            },
        }

    def _goal(self, product: dict[str, Any], text: str, attributes: Any, options: Any) -> Any:
        limit = self.prices[product["asin"]] + random.choice([10, 20])
        named = {k: product[k] for k in ("asin", "category", "query", "name")}
        return named | {
            "instruction_text": f"{text}, and price lower than {limit:.2f} dollars",
            "attributes": attributes,
            "goal_options": options,
            "price_upper": limit,
        }

    def _synthetic(self) -> list[dict[str, Any]]:
        goals = []
        for product in self.all_products:
            asked, names = read(DEFAULT_ATTR_PATH)[product["asin"]], sorted(product["options"])
            for values in itertools.product(*(product["options"][n] for n in names)):
                options = dict(zip(names, values, strict=True))
                text = f"{asked['instruction']} with {options}"
                goals.append(self._goal(product, text, asked["instruction_attributes"], options))
        return goals

    def _human(self) -> list[dict[str, Any]]:
        return [
            self._goal(
                self.product_item_dict[asin],
                asked["instruction"].strip("."),
                asked["instruction_attributes"],
                asked["instruction_options"],
            )
            for asin, written in read(HUMAN_ATTR_PATH).items()
            for asked in written
        ]

    def score(self, session: dict[str, Any]) -> float:
        goal, bought = session["goal"], self.product_item_dict[session["asin"]]
        wanted = goal["goal_options"]
        wanted = set(wanted.values() if isinstance(wanted, dict) else wanted)
        right = len(wanted & set(session["options"].values()))
        right += sum(a in bought["Attributes"] for a in goal["attributes"])
        right += self.prices[session["asin"]] <= goal["price_upper"]
        kind = float(bought["query"] == goal["query"])
        return kind * right / (len(wanted) + len(goal["attributes"]) + 1)


class Browser:
    """The page that is open: `page_source` is JSON of (texts, names of what can be clicked)."""

    def __init__(self, server: SimServer) -> None:
        self.server, self.session_id = server, ""
        self.current_url, self.page_source = "", "[]"

    @property
    def session(self) -> dict[str, Any]:
        return self.server.user_sessions[self.session_id]

    def open(self, page: str, texts: list[str], clicks: list[str]) -> dict[str, Any]:
        self.current_url = f"{self.server.base_url}/{page}/{self.session_id}"
        heading = ["Instruction:", self.session["goal"]["instruction_text"]]
        self.page_source = json.dumps([[*heading, *texts], clicks])
        return {"reward": 0.0, "done": False}

    def start(self) -> dict[str, Any]:
        self.session.update(keywords=None, page=None, asin=None, asins=set(), options={})
        self.session["actions"] = defaultdict(int)
        return self.open("start", ["Search"], ["search"])

    def search(self, keywords: str | list[str], page: int = 1) -> dict[str, Any]:
        words = keywords.split(" ") if isinstance(keywords, str) else keywords
        engine = self.server.search_engine
        hits = [engine.doc(hit.docid) for hit in engine.search(" ".join(words), k=50)]
        asins = [json.loads(hit.raw())["id"] for hit in hits]
        shown = asins[(page - 1) * PER_PAGE : page * PER_PAGE]
        self.session.update(keywords=words, page=page, asin=None, options={})
        texts = [f"Page {page} (Total results: {len(asins)})"]
        for asin in shown:
            texts += [asin, self.server.product_item_dict[asin]["Title"]]
        turns = ["< prev"] * (page > 1) + ["next >"] * (page * PER_PAGE < len(asins))
        return self.open("results", texts, ["back to search", *turns, *map(str.lower, shown)])

    def item(self) -> dict[str, Any]:
        product = self.server.product_item_dict[self.session["asin"]]
        values = [value for of in product["options"].values() for value in of]
        texts = [product["Title"], *values, "Description", "Buy Now"]
        return self.open(
            "item", texts, ["back to search", "< prev", "description", "buy now", *values]
        )

    def click(self, name: str, clickable: dict[str, Any]) -> dict[str, Any]:
        assert name in clickable
        session, at = self.session, self.current_url
        product = self.server.product_item_dict.get(session["asin"] or "")
        if name == "buy now":
            session["done"], session["reward"] = True, self.server.score(session)
            return self.open("done", ["Thank you"], []) | {
                "reward": session["reward"],
                "done": True,
            }
        if name == "back to search":
            return self.start()
        if "results" in at and name in ("next >", "< prev"):
            return self.search(
                session["keywords"], session["page"] + (1 if name == "next >" else -1)
            )
        if "item" in at and name == "< prev":
            return self.search(session["keywords"], session["page"])
        if name == "description" and product is not None:
            return self.open("text", [product["Description"]], ["back to search", "< prev"])
        if name.upper() in self.server.product_item_dict:
            session["asin"] = name.upper()
            session["asins"].add(session["asin"])
        elif product is not None and name != "< prev":
            option = next(n for n, of in product["options"].items() if name in of)
            session["options"][option] = name
        return self.item()


class WebAgentTextEnv:
    def __init__(self, observation_mode: str, server: SimServer, session_prefix: str) -> None:
        assert observation_mode == "text"
        self.server, self.prefix = server, session_prefix
        self.browser = Browser(server)
        self.text_to_clickable: dict[str, Any] = {}
        self.reset()

    def reset(self, session: int | None = None) -> None:
        letters = "".join(random.choices(string.ascii_lowercase, k=10))
        self.session = self.prefix + (letters if session is None else str(session))
        goal = self.server.goals[random.randrange(3) if session is None else session]
        self.server.user_sessions.setdefault(self.session, {"goal": goal, "done": False})
        self.browser.session_id = self.session
        self.browser.start()

    def get_available_actions(self) -> dict[str, Any]:
        _, clicks = json.loads(self.browser.page_source)
        self.text_to_clickable = {name: name for name in clicks}
        return {"has_search_bar": clicks == ["search"], "clickables": clicks}

    @property
    def observation(self) -> str:
        texts, _ = json.loads(self.browser.page_source)
        return " [SEP] ".join(["WebShop", "", *texts])
