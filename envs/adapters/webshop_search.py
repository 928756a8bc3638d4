"""Replacements for WebShop's Lucene index and spaCy model. Each is used if the original is missing.

The replacement index holds the text that WebShop indexes. It ranks products by Lucene's BM25 with
Pyserini's constants, Porter stems and Lucene's stop words. Equal scores keep the catalogue's order.
"""

import json
import logging
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from envs import requirements

K1, B = 0.9, 0.4
"""Pyserini's constants for BM25."""
STOP_WORDS = (
    "a an and are as at be but by for if in into is it no not of on or such that the their then "
    "there these they this to was will with"
).split()
"""Lucene's stop words for English."""
OTHER_WORDS = frozenset(
    "a an the and or nor but if of on in to at by for from with without into onto over under up "
    "off out is are was be been it its this that these those your our my his her their you we "
    "not no all any each more most very can will just only also new great best easy soft".split()
)
"""Words of product names that are not nouns."""


class Bm25Index:
    """Finds products by BM25. WebShop calls its methods like those of Pyserini's LuceneSearcher.
    The index is empty until `build` is called."""

    def __init__(self) -> None:
        self.library = requirements.package("webshop", "bm25s", "webshop")
        # Importing it switches debug logging on.
        logging.getLogger("bm25s").setLevel(logging.WARNING)
        self.stemmer = requirements.package("webshop", "Stemmer", "webshop").Stemmer("porter")
        self.asins: list[str] = []
        self.ranking: Any = None

    def build(self, products: Sequence[dict[str, Any]]) -> None:
        self.asins = [product["asin"] for product in products]
        words = self._words([_contents(product) for product in products])
        if any(words):
            self.ranking = self.library.BM25(method="lucene", k1=K1, b=B)
            self.ranking.index(words, show_progress=False)

    def search(self, query: str, k: int) -> list[SimpleNamespace]:
        """Returns the `docid` of the `k` best matches, best first. A product that shares no word
        with the query is not returned."""
        known = self.ranking.vocab_dict if self.ranking is not None else {}
        words = [word for word in self._words([query])[0] if word in known]
        if not words:
            return []
        scores = self.ranking.get_scores(words)
        best = np.argsort(-scores, kind="stable")[:k]
        return [SimpleNamespace(docid=int(number)) for number in best if scores[number] > 0]

    def doc(self, docid: int) -> SimpleNamespace:
        """Returns a document. Its `raw()` is JSON with the product's ASIN, as WebShop expects."""
        return SimpleNamespace(raw=lambda: json.dumps({"id": self.asins[docid]}))

    def _words(self, texts: list[str]) -> list[list[str]]:
        tokens: list[list[str]] = self.library.tokenize(
            texts,
            token_pattern=r"(?u)\w+",
            stopwords=STOP_WORDS,
            stemmer=self.stemmer,
            return_ids=False,
            show_progress=False,
        )
        return tokens


def _contents(product: dict[str, Any]) -> str:
    """Returns the searchable text of a product: title, description, first bullet point, options."""
    options = ", and ".join(f"{name}: {', '.join(of)}" for name, of in product["options"].items())
    first = next(iter(product["BulletPoints"]), "")
    return " ".join([product["Title"], product["Description"] or "", first or "", options]).lower()


def parts_of_speech(text: str) -> list[SimpleNamespace]:
    """Splits a product's name into tokens like spaCy's. `pos_` is "X" if the word begins with a
    digit or is in OTHER_WORDS, otherwise "NOUN"."""
    words = re.findall(r"\w[\w'-]*", text)
    others = [word.lower() in OTHER_WORDS or word[0].isdigit() for word in words]
    return [
        SimpleNamespace(text=word, pos_="X" if other else "NOUN")
        for word, other in zip(words, others, strict=True)
    ]
