"""Short observations: what they leave out, and what not."""

import pytest

from envs.adapters.scienceworld.brief_text import PROMPTS, brief
from r3l.rollout.prompts import Prompts

KITCHEN = """\
Task Description:
Your task is to find a(n) plant. First, focus on the thing.  Then, move it to the red box.
This room is called the kitchen. In it, you see: 
\tthe agent
\ta substance called air
\ta chair. On the chair is: nothing.
\ta counter. On the counter is: a bowl (containing a red apple, a banana), a drawer.
\ta cupboard. The cupboard door is closed. 
\ta fridge. The fridge door is open. In the fridge is: a wood cup (containing an orange juice).
\ta glass jar (containing a substance called sodium chloride)
\ta oven, which is turned off. The oven door is closed. 
\ta stove, which is turned on. On the stove is: nothing.
\ta stopwatch, which is deactivated. 
\ta thermometer, currently reading a temperature of 10 degrees celsius
You also see:
\tA door to the bathroom (that is open)
\tA door to the hallway (that is closed)
"""  # noqa: W291 (upstream's)


def test_states_that_nobody_changed_are_left_out_and_others_stay():
    assert brief(KITCHEN) == (
        "Your task is to find a(n) plant. First, focus on the thing. Then, move it to the red box. "
        "in kitchen you see: chair, counter (bowl (red apple, banana), drawer), cupboard, "
        "fridge. fridge door is open (wood cup (orange juice)), glass jar (sodium chloride), oven, "
        "stove, which is turned on, stopwatch, thermometer (10 celsius). "
        "doors: bathroom, hallway (that is closed)."
    )


@pytest.mark.parametrize(
    ("text", "short"),
    [
        ("You move to the greenhouse.", "You move to the greenhouse."),
        ("In your inventory, you see:\n\ta butterfly egg\n\tan orange\n",
         "In your inventory, you see: butterfly egg, orange."),
        ("This outside location is called the outside. Here you see: \n\tthe ground\n\ta baby wolf",
         "in outside you see: ground, baby wolf."),
        ("Ambiguous request: which?\n0:\tfocus on plant (in flower pot 8)\n1:\tfocus on plant",
         "Ambiguous request: which? 0: focus on plant (in flower pot 8) 1: focus on plant"),
        ("", ""),
    ],
)  # fmt: skip
def test_other_texts_keep_their_words(text, short):
    assert brief(text) == short


def test_the_prompts_are_known():
    assert Prompts(PROMPTS).texts["guidance"] == "advice: {improvement_suggestion}."
