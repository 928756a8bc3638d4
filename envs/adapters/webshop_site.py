"""Opens a shop. Loads the code of a WebShop repository ("upstream") into this process.

    checkout ─► web_agent_text_env.py ─► SimServer (products, goals, pages)
                     └─ imports gym and torch (stubbed), pyserini and spacy (replaced if missing)

In a process, all environments with the same settings share one SimServer.
When upstream starts, it draws prices and price limits from the global random generator. The seed
is fixed, so that a goal number means the same task in every process.
"""

import contextlib
import importlib.util
import io
import json
import logging
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

from envs import requirements
from envs.adapters.webshop_search import Bm25Index, parts_of_speech
from r3l.errors import UserError, install
from r3l.files.own_packages import import_path, module_command

log = logging.getLogger(__name__)

PACKAGE = "web_agent_site"
CODE = Path(PACKAGE) / "envs" / "web_agent_text_env.py"
GET = "clone princeton-nlp/WebShop and run ./setup.sh -d small in it, or set WEBSHOP to its folder"
SEED = 233
"""Upstream's seed for shuffling its goals."""
INDEXES = {100: "indexes_100", 1000: "indexes_1k", 100_000: "indexes_100k", 0: "indexes"}
"""Upstream's Lucene indexes, by the number of products in them; 0: all."""
MODELS = ("en_core_web_sm", "en_core_web_lg")
START_S = 1800.0
"""Time limit for opening a shop, seconds. The whole catalogue has 1.2 million products."""


@dataclass(frozen=True)
class Settings:
    """Settings of a shop. `checkout`: upstream's folder; `products`: number of products (0: all);
    `goals`: `synthetic` or `human`."""

    checkout: str
    products: int
    goals: str

    def __post_init__(self) -> None:
        requirements.choice("goals", self.goals, ("synthetic", "human"))
        requirements.integer("products", self.products, 0, 10_000_000)


@dataclass(frozen=True)
class Site:
    """An open shop. `code`: upstream's module; `server`: upstream's SimServer; `index`: the
    replacement for upstream's index, None if upstream's own is used."""

    code: Any
    server: Any
    index: Bm25Index | None

    def browser(self, name: str) -> Any:
        """Makes a visitor (upstream's WebAgentTextEnv). Its session names start with `name`."""
        with seeded():
            visitor = self.code.WebAgentTextEnv(
                observation_mode="text", server=self.server, session_prefix=f"{name}-"
            )
        self.server.user_sessions.pop(visitor.session, None)
        return visitor


def folder(checkout: str) -> Path:
    """Returns the user's checkout. Raises a UserError that says how to get a checkout."""
    given = checkout or os.environ.get("WEBSHOP", "")
    return requirements.folder("webshop", "checkout", given, str(CODE), GET)


@lru_cache(maxsize=2)
def open_site(settings: Settings) -> Site:
    """Returns this process's shop with these settings. Raises UserError if it cannot be opened."""
    site = _start(settings)
    if site.index is not None:
        site.index.build(site.server.all_products)
    return site


def _start(settings: Settings) -> Site:
    root = folder(settings.checkout)
    own_search = _replaces("Lucene", _missing_for_search(root, settings.products))
    own_nouns = _replaces("spaCy", _missing_for_nouns())
    printed = io.StringIO()  # and progress bars on standard error
    with seeded(), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code, utils = _load(root, own_search=own_search, own_nouns=own_nouns)
        for name in ("DEFAULT_FILE_PATH", "DEFAULT_ATTR_PATH", "HUMAN_ATTR_PATH"):
            if not (file := Path(getattr(utils, name))).is_file():
                raise UserError(
                    f"env webshop: checkout {root} lacks data/{file.name}; run ./setup.sh -d small "
                    "there"
                )
        index = Bm25Index() if own_search else None
        if index is not None:
            code.init_search_engine = lambda num_products=None: index
        server = code.SimServer(
            "http://127.0.0.1:3000",
            utils.DEFAULT_FILE_PATH,
            num_products=settings.products or None,
            human_goals=int(settings.goals == "human"),
        )
    if not server.goals:
        raise UserError(f"env webshop: {root} has no {settings.goals} goals; check its data files")
    return Site(code, server, index)


@lru_cache(maxsize=2)
def categories(settings: Settings) -> tuple[str, ...]:
    """Returns the goals' categories, in the shop's order. Opens the shop in another process, to
    save memory. Raises UserError if the shop cannot be opened."""
    folder(settings.checkout)
    command = [*module_command(__name__), json.dumps(astuple(settings))]
    settled = os.environ | {"PYTHONPATH": import_path()}
    try:
        done = subprocess.run(
            command, env=settled, capture_output=True, text=True, timeout=START_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"env webshop: the shop did not open within {START_S:g} s") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise UserError(last if done.returncode == 2 else f"env webshop: cannot be opened: {last}")
    return tuple(json.loads(done.stdout))


@contextlib.contextmanager
def seeded() -> Iterator[None]:
    """Seeds the global random generator, which upstream uses. Restores its state at the end."""
    state = random.getstate()
    random.seed(SEED)
    try:
        yield
    finally:
        random.setstate(state)


def _missing_for_search(root: Path, products: int) -> str:
    index = root / "search_engine" / INDEXES.get(products, "none of this size")
    if not (index.is_dir() and any(index.iterdir())):
        return f"an index in {index}"
    if find_spec("pyserini") is None:
        return "the package pyserini"
    return "" if shutil.which("java") else "the program java"


def _missing_for_nouns() -> str:
    if find_spec("spacy") is None:
        return "the package spacy"
    return "" if any(find_spec(model) for model in MODELS) else f"spaCy's model {MODELS[0]}"


def _replaces(name: str, missing: str) -> bool:
    """Returns whether to replace `name`, and warns if so. `missing`: what is missing, or ""."""
    if missing:
        log.warning(
            "webshop: %s is replaced because %s is missing; scores are not comparable with "
            "published ones",
            *(name, missing),
        )
    return bool(missing)


def _load(root: Path, *, own_search: bool, own_nouns: bool) -> tuple[Any, Any]:
    """Loads upstream's module and `utils`. Skips `envs/__init__.py`, which needs a browser driver.
    Leaves neither upstream's package nor stubs in sys.modules."""
    replaced: dict[str, ModuleType] = {
        "gym": _module("gym", Env=object),
        "torch": _module("torch"),
    }
    if own_search:
        for name in ("pyserini", "pyserini.search", "pyserini.search.lucene"):
            replaced[name] = _module(name, LuceneSearcher=None)
    if own_nouns:
        replaced["spacy"] = _module("spacy", load=lambda name: parts_of_speech)
    hidden = {name: sys.modules.pop(name, None) for name in replaced}
    sys.modules.update(replaced)
    sys.path.insert(0, str(root))
    try:
        spec = importlib.util.spec_from_file_location("r3l_webshop", root / CODE)
        assert spec is not None and spec.loader is not None  # a .py file has both
        code = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(code)
        return code, sys.modules[f"{PACKAGE}.utils"]
    except ModuleNotFoundError as error:
        raise UserError(
            f"env webshop: needs the package {error.name}; {install('webshop')}"
        ) from None
    finally:
        sys.path.remove(str(root))
        for name in [name for name in sys.modules if name.partition(".")[0] == PACKAGE]:
            del sys.modules[name]
        for name, module in hidden.items():
            del sys.modules[name]
            if module is not None:
                sys.modules[name] = module


def _module(name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(attributes)
    return module


def main() -> None:
    """Prints the categories of the goals as JSON. The first argument is the settings as JSON."""
    logging.disable(logging.WARNING)
    try:
        goals = _start(Settings(*json.loads(sys.argv[1]))).server.goals
    except UserError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(2)
    sys.stdout.write(json.dumps([str(goal.get("category") or "") for goal in goals]))


if __name__ == "__main__":
    main()
