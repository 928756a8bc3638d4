"""WebShop on a tiny catalogue: on a stand-in for its site, and, with R3L_WEBSHOP naming a checkout
of princeton-nlp/WebShop (code alone is enough), on upstream's own code."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from envs import registry
from envs.adapters import webshop_site
from envs.adapters.webshop import splits
from envs.adapters.webshop_search import Bm25Index, parts_of_speech
from envs.testing import check_env
from r3l.errors import EnvironmentFailed, UserError
from tests.envs.adapters.shop import checkout

pytest.importorskip("bm25s", reason="pip install 'r3l[webshop]'")
ROOT = Path(__file__).parents[3]
UPSTREAM = os.environ.get("R3L_WEBSHOP", "")


@pytest.fixture(scope="module", params=["stand-in", "upstream"])
def shop(request, tmp_path_factory):
    """The folder of a checkout with the tiny catalogue."""
    if request.param == "upstream" and not UPSTREAM:
        pytest.skip("R3L_WEBSHOP names no checkout of princeton-nlp/WebShop")
    upstream = Path(UPSTREAM).expanduser() if request.param == "upstream" else None
    return checkout(tmp_path_factory.mktemp("webshop") / "checkout", upstream)


@pytest.fixture
def env(shop):
    env = registry.make("webshop", checkout=str(shop))
    yield env
    env.close()


def test_it_conforms_and_its_demonstrations_earn_the_full_score(shop):
    check_env("webshop", seeds=range(4), options={"checkout": str(shop)})
    check_env("webshop", seeds=(0,), options={"checkout": str(shop), "goals": "human"})


def test_every_goal_has_a_demonstration(env):
    for goal in range(0, len(env.server.goals), 5):
        env.reset(seed=0, options={"goal": goal})
        assert env.demonstration(), env.server.goals[goal]


def test_a_purchase_is_scored_by_what_was_asked_for(env):
    first, info = env.reset(seed=0, options={"goal": 3})
    goal = env.server.goals[3]
    assert goal["instruction_text"] in first and "search[words]" in first
    assert info["admissible"][0].startswith("search[i want")
    *way, last = env.demonstration()
    pages = [env.step(f"<action>{action}</action>") for action in way]
    assert all((reward, done) == (0.0, False) for _, reward, done, *_ in pages)
    assert f"Chosen: {next(iter(goal['goal_options']))}: " in pages[-1][0]
    text, reward, terminated, *_ = env.step(last)
    assert (reward, terminated) == (1.0, True) and "The score is 100 of 100." in text
    env.reset(seed=0, options={"goal": 3})
    skipped = [
        *[action for action in way if goal["asin"].lower() in action or "click" not in action]
    ]
    for action in [*skipped, last]:
        text, reward, terminated, *_ = env.step(action)
    assert terminated and 0.0 < reward < 1.0  # without the options
    assert env.feedback() == text and goal["asin"].lower() in text


def test_what_cannot_be_done_is_said_and_changes_nothing(env):
    env.reset(seed=0, options={"goal": 0})
    assert "nothing like that to click" in env.step("click[buy now]")[0]
    assert "give search[words]" in env.step("<action>buy now</action>")[0]
    assert "needs words" in env.step("search[ <> ]")[0]
    assert "nothing like that" in env.step("click[Search]")[0]
    page = env.step("SEARCH[Mug]")[0]
    assert "Page 1" in page and "click[next >]" in page
    refused = env.step("search[scarf]")[0]
    assert "no search bar" in refused and "click[back to search]" in refused
    assert "Page 2" in env.step("click[Next  >]")[0] and env.feedback() == "Nothing was bought."


def test_what_upstream_takes_for_orders_is_only_words(env):
    env.reset(seed=0, options={"goal": 0})
    for order in ("<r>", "<a> safe", "<c>", "<q> mug", "<R> mug"):
        first = env.step(f"search[{order}]")[0]
        env.step("click[back to search]")
        assert env.step(f"search[{order}]")[0] == first
        env.step("click[back to search]")


def test_an_option_with_brackets_can_be_chosen(env):
    scarf = next(n for n, g in enumerate(env.server.goals) if "[1 m]" in str(g["goal_options"]))
    env.reset(seed=0, options={"goal": scarf})
    actions = env.demonstration()
    assert "click[short [1 m]]" in actions
    assert [env.step(action) for action in actions][-1][1] == 1.0


def test_goals_are_the_same_in_every_process_and_the_global_generator_is_left_alone(shop):
    program = (
        "import random, sys, zlib\n"
        "from envs import registry\n"
        "random.seed(int(sys.argv[2]))\n"
        "before = random.getstate()\n"
        "env = registry.make('webshop', checkout=sys.argv[1])\n"
        "env.reset(seed=int(sys.argv[2]))\n"
        "assert random.getstate() == before\n"
        "print(zlib.crc32(repr([g['instruction_text'] for g in env.server.goals]).encode()))\n"
    )
    said = {
        subprocess.run(
            [sys.executable, "-c", program, str(shop), seed],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and "\n" in said.pop()


def test_sessions_are_forgotten(shop):
    env, other = (registry.make("webshop", checkout=str(shop)) for _ in range(2))
    assert env.server is other.server
    for seed in range(20):
        env.reset(seed=seed)
        other.reset(seed=seed)
    assert len(env.server.user_sessions) == 2
    env.close()
    other.close()
    assert not env.server.user_sessions


def test_every_goal_is_one_task_of_one_split(shop):
    options = {"checkout": str(shop)}
    train, test, dev = (
        registry.tasks("webshop", options | more, split, 10_000)
        for split, more in [("train", {}), ("eval", {}), ("eval", {"eval_split": "dev"})]
    )
    numbers = [task.options["goal"] for task in (*train, *test, *dev)]
    env = registry.make("webshop", **options)
    assert sorted(numbers) == list(range(len(env.server.goals)))
    for task in train[:5]:
        assert task.options["family"] == env.server.goals[task.options["goal"]]["category"]
    env.close()


def test_splits_are_upstreams_where_there_are_enough_goals():
    assert splits(12_087) == (range(500), range(500, 1500), range(1500, 12_087))
    assert splits(6910)[2] == range(1500, 6910) and splits(5000)[2] == range(1500, 5000)
    assert splits(100) == (range(10), range(10, 30), range(30, 100))
    assert splits(2) == (range(1), range(1, 1), range(1, 2))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkout": ""}, "needs its data folder, option checkout; clone princeton-nlp/WebShop"),
        ({"checkout": "{empty}"}, "holds no web_agent_site/envs/web_agent_text_env.py"),
        ({"checkout": "{bare}"}, "holds no data/items_shuffle_1000.json; run ./setup.sh -d small"),
        ({"checkout": "{shop}", "search": "lucene"}, "search=lucene needs an index in "),
        ({"checkout": "{shop}", "goals": "all"}, "goals is 'all'; it must be synthetic or human"),
        ({"checkout": "{shop}", "products": -1}, "products is -1"),
        ({"checkout": "{shop}", "eval_split": "held"}, "it must be test or dev"),
    ],
)
def test_what_a_user_can_get_wrong_is_one_line(options, says, shop, tmp_path, monkeypatch):
    monkeypatch.delenv("WEBSHOP", raising=False)
    bare = checkout(tmp_path / "bare")
    (bare / "data" / "items_shuffle_1000.json").unlink()
    names = {"empty": tmp_path, "bare": bare, "shop": shop}
    given = {k: v.format(**names) if isinstance(v, str) else v for k, v in options.items()}
    for ask in (registry.make, lambda name, **o: registry.tasks(name, o, "train", 1)):
        with pytest.raises(UserError) as caught:
            ask("webshop", **given)
        assert says in str(caught.value) and "\n" not in str(caught.value)


def test_a_package_that_upstream_imports_and_is_not_there_is_named(tmp_path):
    folder = checkout(tmp_path / "checkout")
    code = folder / webshop_site.CODE
    code.write_text(f"import no_such_thing\n{code.read_text()}")
    with pytest.raises(UserError, match=r"package no_such_thing; pip install 'r3l\[webshop\]'"):
        registry.make("webshop", checkout=str(folder))


def test_a_goal_that_is_not_there_fails_by_name(env):
    with pytest.raises(EnvironmentFailed) as caught:
        env.reset(seed=0, options={"goal": 10**6})
    assert caught.value.cause == "no_goal"


def product(asin, title, description="", bullets=(), **options):
    return {
        "asin": asin,
        "Title": title,
        "Description": description,
        "BulletPoints": list(bullets),
        "options": options,
    }


def test_the_fallback_index_ranks_by_rare_words_stems_and_keeps_ties_in_order():
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
