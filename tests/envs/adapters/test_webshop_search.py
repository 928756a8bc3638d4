"""The stand-ins for WebShop's Lucene index and spaCy model."""

import json
import random

import pytest

from envs.adapters.webshop_search import Bm25Index, parts_of_speech


def product(asin, title, description="", bullets=(), **options):
    return {
        "asin": asin,
        "Title": title,
        "Description": description,
        "BulletPoints": list(bullets),
        "options": options,
    }


def test_the_fallback_index_ranks_by_rare_words_stems_and_keeps_ties_in_order():
    pytest.importorskip("bm25s", reason="pip install 'r3l[webshop]'")
    index = Bm25Index()
    assert index.search("anything", k=5) == []
    index.build(
        [
            product("A", "Blue mugs for painters"),
            product("B", "Blue bowl", color=["crimson", "navy"]),
            product("C", "Blue bowl", color=["crimson", "navy"]),
            product("D", "The and of", bullets=["a painted mug"]),
        ]
    )

    def found(query, k=10):
        return [json.loads(index.doc(hit.docid).raw())["id"] for hit in index.search(query, k=k)]

    assert found("mug") == ["A", "D"] or found("mug") == ["D", "A"]
    assert found("painting mugs")[0] == "D" and found("crimson") == ["B", "C"]
    assert found("blue crimson", k=2) == ["B", "C"] and found("the of xyzzy 🔥") == []
    random.seed(0)
    assert found("blue bowl mug") == found("blue bowl mug")


def test_the_fallback_takes_words_of_a_name_for_nouns_but_numbers_and_small_words():
    said = parts_of_speech("Women's Wool Scarf with 2 Pockets, easy to wash")
    nouns = [word.text for word in said if word.pos_ == "NOUN"]
    assert nouns == ["Women's", "Wool", "Scarf", "Pockets", "wash"]
