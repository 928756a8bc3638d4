"""The guide on texts of upstream, and on the real world."""

import pytest

from envs.adapters.scienceworld.simulator import Turn
from lab.scienceworld.gold_guide import DOORS, Guide, things

HALLWAY = """Your task is to find a(n) plant. Move it to the red box in the kitchen.
This room is called the hallway. In it, you see: 
\tthe agent
\ta substance called air
\ta picture
You also see:
\tA door to the greenhouse (that is open)"""  # noqa: W291
GREENHOUSE = """This room is called the greenhouse. In it, you see: 
\tthe agent
\ta substance called air
\ta bee hive. The bee hive door is closed. 
\ta flower pot 3 (containing a pea plant in the adult stage with a tall height, soil)
\ta flower pot 6 (containing a apple tree in the adult stage, soil)
\ta sink, which is turned off. In the sink is: nothing.
You also see:
\tA door to the outside (that is open)"""  # noqa: W291
GOLD = [
    ("open door to greenhouse", Turn("The door is already open.", 0.08, False)),
    ("go to greenhouse", Turn("You move to the greenhouse.", 0.17, False)),
    ("look around", Turn(GREENHOUSE, 0.17, False)),
    ("focus on adult apple tree", Turn("You focus on the plant.", 0.67, False)),
    ("pick up flower pot 6", Turn("You move the flower pot 6 to the inventory.", 0.75, False)),
    ("go to outside", Turn("You move to the outside.", 0.75, False)),
    ("go to kitchen", Turn("You move to the kitchen.", 0.83, False)),
    ("move flower pot 6 containing apple tree to red box",
     Turn("You move the flower pot 6 to the red box.", 1.0, True)),
]  # fmt: skip
REFUSED = Turn("No known action matches that input.", 0.0, False)


@pytest.fixture
def guide():
    return Guide(HALLWAY, GOLD)


def test_the_deeds_are_named_as_the_description_names_things(guide):
    assert [(deed.room, deed.action) for deed in guide.deeds] == [
        ("greenhouse", "focus on apple tree"),
        ("greenhouse", "pick up flower pot 6"),
        ("kitchen", "move flower pot 6 to red box"),
    ]


def test_the_guide_walks_looks_and_acts(guide):
    played, actions = [], []
    replies = dict(GOLD)
    replies["focus on apple tree"] = Turn("You focus on the apple tree.", 0.67, False)
    replies["move flower pot 6 to red box"] = GOLD[-1][1]
    replies["go to hallway"] = Turn("You move to the hallway.", 0.75, False)
    left = []
    while not (played and played[-1][1].done):
        left.append(guide.distance(played))
        actions.append(guide.next(played))
        played.append((actions[-1], replies[actions[-1]]))
    assert actions == [
        "go to greenhouse",
        "look around",
        "focus on apple tree",
        "pick up flower pot 6",
        "go to hallway",
        "go to kitchen",
        "move flower pot 6 to red box",
    ]
    assert [*left, guide.distance(played)] == [7, 6, 5, 4, 3, 2, 1, 0]


def test_after_a_detour_the_guide_walks_back(guide):
    art = ("go to art studio", Turn("You move to the art studio.", 0.0, False))
    assert guide.next([art]) == "go to hallway" and guide.distance([art]) == 8
    assert guide.next([("zzz", REFUSED)]) == "go to greenhouse"


def test_an_action_that_is_not_understood_is_said_in_golds_words(guide):
    there = GOLD[1:3]
    assert guide.next([*there, ("focus on apple tree", REFUSED)]) == "focus on adult apple tree"
    which = Turn("Ambiguous request: Please enter the number\n0:\tfocus on plant", 0.17, False)
    assert guide.next([*there, ("focus on plant", which)]) == "0"


def test_a_thing_that_is_as_good_takes_the_place_of_golds(guide):
    played = [*GOLD[1:3], ("focus on pea plant", Turn("You focus on the pea plant.", 0.67, False))]
    assert guide.next(played) == "pick up flower pot 3"
    carried = Turn("You move the flower pot 3 to the inventory.", 0.75, False)
    at = [*played, ("pick up flower pot 3", carried), ("teleport to kitchen", GOLD[6][1])]
    assert guide.next(at) == "move flower pot 3 to red box"


def test_a_wrong_focus_is_not_the_deed(guide):
    wrong = ("focus on bee hive", Turn("You focus on the bee hive.", 0.17, False))
    assert guide.next([*GOLD[1:3], wrong]) == "focus on apple tree"


def test_a_literal_guide_repeats_the_gold_path():
    guide = Guide(HALLWAY, GOLD, literal=True)
    for number, (command, _) in enumerate(GOLD):
        assert guide.next(GOLD[:number]) == command


def test_things_are_those_of_the_description_without_the_air():
    assert things(GREENHOUSE) == [
        "bee hive",
        "flower pot 3",
        "pea plant",
        "flower pot 6",
        "apple tree",
        "sink",
    ]


def test_doors_lead_both_ways():
    assert all(room in DOORS[other] for room, others in DOORS.items() for other in others)


def test_the_doors_are_upstreams(env):
    env.reset(seed=0, options={"task": "find-plant", "variation": 7})
    for room, others in DOORS.items():
        env.step(f"teleport to {room}")
        said = env.step("look around")[0].partition("You also see:")[2]
        assert [line.split(" to the ")[1].split(" (")[0] for line in said.split("\n")[1:]] == others
