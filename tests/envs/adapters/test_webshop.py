"""WebShop on a tiny catalogue: on a stand-in for its site, and, with R3L_WEBSHOP naming a checkout
of princeton-nlp/WebShop (code alone is enough), on upstream's own code."""

import pytest

from envs import registry
from envs.adapters.webshop import splits
from envs.testing import check_env
from r3l.errors import EnvironmentFailed, UserError
from tests.envs.adapters.shop import checkout

pytest.importorskip("bm25s", reason="pip install 'r3l[webshop]'")


def test_the_environment_conforms_and_its_demonstrations_earn_the_full_score(shop):
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


def test_an_impossible_action_is_explained_and_changes_nothing(env):
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


def test_orders_to_upstreams_search_are_plain_words_here(env):
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


def test_every_goal_is_at_most_one_task_of_one_split(shop):
    options = {"checkout": str(shop)}
    train, test = (registry.tasks("webshop", options, split, 10_000) for split in ("train", "eval"))
    numbers = [task.options["goal"] for task in (*test, *train)]
    env = registry.make("webshop", **options)
    assert sorted(numbers) == [n for half in splits(len(env.server.goals)) for n in half]
    for task in train[:5]:
        assert task.options["family"] == env.server.goals[task.options["goal"]]["category"]
    env.close()


def test_splits_follow_upstream_if_there_are_enough_goals():
    assert splits(12_087) == (range(500), range(1500, 12_087))
    assert splits(6910)[1] == range(1500, 6910) and splits(5000)[1] == range(1500, 5000)
    assert splits(100) == (range(10), range(30, 100))
    assert splits(2) == (range(1), range(1, 2))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"checkout": ""}, "option checkout); clone princeton-nlp/WebShop"),
        ({"checkout": "{empty}"}, "contain web_agent_site/envs/web_agent_text_env.py"),
        ({"checkout": "{bare}"}, "lacks data/items_shuffle_1000.json; "),
        ({"checkout": "{shop}", "goals": "all"}, "goals is 'all'; "),
        ({"checkout": "{shop}", "products": -1}, "products is -1"),
    ],
)
def test_a_wrong_setting_of_the_shop_is_refused_in_one_line(
    options, says, shop, tmp_path, monkeypatch
):
    monkeypatch.delenv("WEBSHOP", raising=False)
    bare = checkout(tmp_path / "bare")
    (bare / "data" / "items_shuffle_1000.json").unlink()
    names = {"empty": tmp_path, "bare": bare, "shop": shop}
    given = {k: v.format(**names) if isinstance(v, str) else v for k, v in options.items()}
    for ask in (registry.make, lambda name, **o: registry.tasks(name, o, "train", 1)):
        with pytest.raises(UserError) as caught:
            ask("webshop", **given)
        assert says in str(caught.value) and "\n" not in str(caught.value)


def test_an_unknown_goal_fails_by_name(env):
    with pytest.raises(EnvironmentFailed) as caught:
        env.reset(seed=0, options={"goal": 10**6})
    assert caught.value.cause == "no_goal"


@pytest.fixture
def env(shop):
    env = registry.make("webshop", checkout=str(shop))
    yield env
    env.close()
