r"""Times, dates, ratios and units are no arithmetic: the verdicts of a person."""

import pytest

from envs.questions.math_answer import compare

pytest.importorskip("math_verify")

SAME = {
    "times": [
        ("2:30 pm", "2:30 PM"), ("2:30", "02:30"), ("2:30 pm", "2:30 p.m."),
        ("2:30 PM", "2:30pm"), ("7:00 a.m.", "7:00 AM"), ("5:00 pm", "5 pm"),
        ("14:30", "2:30 pm"), ("2:30 pm", "14:30"), ("12:00 am", "00:00"), ("2:30", "2:30 pm"),
        ("5", "5 pm"), (r"2:30 \text{ p.m.}", "2:30 pm"), ("12:30:15", "12:30:15"),
        (r"\text{2:30 pm}", "$2:30$ pm"), ("2:30 pm, 4:15 pm", "4:15 PM and 2:30 PM"),
        ("9:00", "9:00:00"), ("9:00:00 AM", "9 am"), ("14:00", "2:00:00 pm"),
    ],
    "ratios": [
        ("3:2", "3 : 2"), ("3:2", "6:4"), ("3:2", r"3\colon 2"), ("1:2:3", "2:4:6"),
        ("(3:2)", "3:2"), ("a:b = 2:3", "2:3"), (r"\frac{1}{2}:3", "1/2 : 3"), (r"x:y", "x : y"),
        (r"\sqrt{2}:1", r"\sqrt 2 : 1"), ("(1:2, 3)", "(1 : 2, 3)"),
        ("3:2", "3 to 2"), ("3 to 2", "3 : 2"), ("1:2:3", "1 to 2 to 3"), ("10 to 20", "10 to 20"),
    ],
    "dotted and years": [
        ("1.2.3", "1.2.3"), ("192.168.0.1", "192.168.0.1"), ("2019-2020", "2019–2020"),
        ("2019-2020", "2019 to 2020"), ("3.5, 1.2", "1.2, 3.5"),
    ],
    "dates": [
        ("May 3", "may 3"), ("May 3, 2020", "3 May 2020"), ("May 3", "May 3rd"),
        ("3rd of May", "May 3"), ("2020-05-03", "2020-05-03"), ("2020-05-03", "2020/5/3"),
        ("Dec. 25", "December 25"), (r"\text{May 3}", "May 3"), ("12/25", "12/25"),
        ("3 May", "May 3"), ("3 May", "May 3rd"), ("July 4", "4 July"),
        (r"4 \text{ July}", "July 4"),
        ("25 December", "December 25"), ("10 sept", "Sept 10"), ("2 Mar.", "March 2"),
    ],
    "units": [
        ("5 cm", "5 centimeters"), ("3 hours", "3 hrs"), ("5 km", "5"), ("5", "5 cm"),
        ("3 hours", "3"), (r"\$5", "5 dollars"), (r"15 \text{ cm}^2", "15 square centimeters"),
        ("5 feet", "5 ft"), (r"90^\circ", "90 degrees"), ("7 apples", "7 apples"),
        ("7 red apples", "7 apples"), (r"4 \text{ units}", "4"), ("5 m", "5 m"),
        ("10 inches", "10 inch"), ("60 mph", "60"),
        ("60 mph", "60 miles per hour"), ("60 miles/hour", "60mph"), ("5 km/h", "5"),
        ("20 km/h", "20 kilometers per hour"), ("20 kph", "20 km/h"),
        ("5 m/s", "5 meters per second"),
        ("20 dollars per hour", r"\$20"), ("$20 per hour", "20 dollars"), ("5 USD", "$5"),
        ("2 tbsp", "2 tablespoons"), ("1 tsp", "1 teaspoon"), ("8 in", "8 inches"), ("8", "8 in."),
        ("8 sq in", "8 square inches"), ("100 m", "100 meters"), ("5 L", "5 liters"),
        ("2 hours", "2 h"), ("300 kcal", "300 kilocalories"),
    ],
    "percents": [
        ("25%", "25 percent"), ("25%", "0.25"), ("25%", "1/4"), (r"25\%", r"25\,\%"),
        ("0.5", "50 percent"), (r"25\% \text{ of the day}", "25%"),
    ],
    "relations": [
        ("x > 3", "x>3"), (r"x \ge 3", r"x \geq 3"), ("x>=3", r"x \geq 3"),
        ("x ≤ 2", r"x \leq 2"), ("-1 < x < 3", "-1<x<3"), (r"\emptyset", r"\varnothing"),
        (r"x \ne 1", r"x \neq 1"),
    ],
    "words and sets": [
        ("yes", "Yes"), ("Tuesday", r"\text{Tuesday}"), (r"\{1,2,3\}", r"\{3,2,1\}"),
        ("[1,2]", "[1, 2]"), ("no solution", "No solution"), ("A", "(A)"),
        (r"x \in [0,1]", "[0,1]"),
    ],
}  # fmt: skip
OTHER = {
    "times": [
        ("2:30 pm", "1:15 pm"), ("2:30 pm", "2:30 am"), ("2:30 pm", "2:30"), ("2:30", "2.5"),
        ("5/2", "2:30"), ("12:00", "6:00"), ("12:30", "12/30"), ("12:30", "2/5"),
        ("10:20", "5:10"), ("10:20", "1/2"), ("1:30", "0:45"), ("14:00", "7:30"), ("8:00", "4"),
        ("12:30:15", "12:30"), ("2:05", "2:5"), ("7:30", "7.5"), ("6:00", "6"), ("5 pm", "5 am"),
        ("5 pm", "5"), ("2:30 am", "14:30"), ("12:00 pm", "00:00"), ("5", "05:00"),
        ("1:15", "1:15, 2:30"), ("3:20", "6:40"), ("2:30 pm", "2:30 pm or 3 pm"),
        ("9:00", "9:00:01"), ("9:00 am", "9:00:00 pm"), ("10:20", "10 to 20"),
    ],
    "ratios": [
        ("3:2", "2:3"), ("3:2", "1.5"), ("3:2", "1.4"), ("1:2:3", "1:2"), ("1:2:3", "3:2:1"),
        ("3:2", "32"), ("1:2:3", "1/6"), ("2:4:6", "1:2"), ("1:1", "1"), ("1", "2:2"),
        (r"\frac{3}{2}", "3:2:1"), ("x:y", "y:x"), ("3:2", "3"), ("0:1", "0:2"),
        ("(1:2, 3)", "(2:1, 3)"), ("1:2", "-1:-2"),
        ("3:2", "2 to 3"), ("3 to 2", "1.5"), ("1 to 2", "2 to 4"), ("10 to 20", "10"),
    ],
    "dotted and years": [
        ("192.168.0.1", "192.168.0.10"), ("1.2.3.4", "1.2.3.40"), ("1.2.3", "1.23"),
        ("1.2.3", "1.2"), ("v1.2.3", "v1.2.30"), ("2019-2020", "-1"), ("-1", "2019-2020"),
        ("8", "2020-2012"), ("2019-2020", "2018-2019"),
    ],
    "dates": [
        ("May 3", "May 4"), ("May 3", "June 3"), ("May 3", "3"), ("2020-05-03", "2012"),
        ("2020-05-03", "2020-03-05"), ("12/25", "25/12"), ("5/3/2020", "5/3"),
        ("May 3, 2020", "May 3, 2021"), ("May 3, 2020", "3, 2020"), ("May 3, 2020", "May 3"),
        ("5/3/2020", "3/5/2020"), ("5/3/2020", r"\frac{1}{1212}"), ("May", "March"),
        ("March 3", "marble 3"),
        ("3 May", "3"), ("10 May", "10"), ("3", "3 May"), ("3 May", "3 June"),
        ("12 Mar", "12 marbles"),
    ],
    "units": [
        ("5 km", "5 m"), ("5 cm", "5 kg"), ("5 km/h", "5 m/s"), ("3 hours", "3 minutes"),
        ("5 dollars", "5 cents"), ("60 minutes", "60 seconds"), ("5 kg", "5 lb"),
        ("5 m^2", "5 m^3"), ("10 feet", "10 inches"), (r"\$5", "5 cents"),
        (r"90^\circ", "90 radians"), ("7 apples", "7 oranges"), ("3 days", "3 weeks"),
        (r"15 \text{ cm}^2", r"15 \text{ cm}"), (r"15 \text{ cm}^2", r"15 \text{ cm}^3"),
        ("5", "6 cm"), ("5 g", "5 kg"), (r"5\text{ cm}", r"5\mbox{ m}"),
        ("2 miles per hour", "2 kilometers per hour"),
        ("5 km", "5 km/h"), ("60 mph", "60 miles"), ("60 mph", "60 hours"), ("60 mph", "60 kph"),
        ("20 dollars per hour", "20 hours"), ("20 dollars per hour", "20 dollars per day"),
        ("5 L", "5 ml"), ("5 L", "5 meters"), ("8 in", "8 ft"), ("2 tbsp", "2 tsp"),
        ("12 in binary", "12"), ("7 boys", "7 girls"), ("5 m/s", "5 m"), ("5 m/s", "5 km/h"),
    ],
    "percents": [
        ("25%", "25/4"), ("25%", "2.5"), ("25%", "0.0025"), ("0.25", "25"), ("1%", "0.1"),
        ("50%", "5"), ("5", "500%1"), ("50", "0.5"), ("50%", "50 dollars and 5 cents"),
        ("50%", "50 dollars"), ("5%", "5 cm"), ("$5", "5%"), ("50%", "50 apples"),
        ("50%", "50 degrees"),
    ],
    "relations": [
        ("x > 3", r"x \geq 3"), ("x > 3", "3 > x"), ("x > 3", "3"), ("x < 3", "3"),
        (r"x \neq 3", "3"), ("-1<x<3", r"-1<x\leq 3"), ("-1<x<3", "-1<x<4"), ("x>3", "y>3"),
        ("3", "x>3"), (r"x \leq 2", r"x \leq 3"), (r"x \ge 3", r"x \le 3"), ("x > 3", "(3, 4)"),
        (r"\emptyset", "0"), (r"\emptyset", r"\{0\}"),
    ],
    "words and sets": [
        ("yes", "yes or no"), ("red", "red, blue"), ("north", "northeast"), ("(1,2)", "[1,2]"),
        ("(1,2]", "[1,2)"), ("(1,2)", r"\{1,2\}"), ("(1,2)", "1.2"), ("[1,2]", "[2,1]"),
        (r"\{1,2\}", r"\{1,2,3\}"), (r"\{1,2\}", r"\{1\}"), ("0", "no solution"),
        (r"\{0\}", r"\{\}"), ("Monday", "Sunday"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", SAME)
def test_what_a_person_takes_for_the_same_is_right(kind: str) -> None:
    verdicts = [(gold, answer, compare(gold, answer)) for gold, answer in SAME[kind]]
    assert [each for each in verdicts if each[2] != "correct"] == []


@pytest.mark.parametrize("kind", OTHER)
def test_what_a_person_tells_apart_is_wrong(kind: str) -> None:
    verdicts = [(gold, answer, compare(gold, answer)) for gold, answer in OTHER[kind]]
    assert [each for each in verdicts if each[2] == "correct"] == []


def test_no_clock_time_is_taken_for_another_one_or_for_a_number() -> None:
    clock = [f"{hour}:{minute:02d}" for hour in range(1, 13) for minute in (0, 1, 10, 15, 30, 59)]
    times = [*clock, *(f"{time} {half}" for time in clock for half in ("am", "pm"))]
    for place, gold in enumerate(times):
        hour, minute = map(int, gold[:5].strip(" ap").split(":"))
        numbers = [f"{hour}/{minute}", str(hour + minute / 60), str(hour), f"{hour}{minute:02d}"]
        for other in (*times[place % 7 :: 7], *numbers):
            right = other == gold or (place < len(clock) and other.startswith(f"{gold} "))
            assert (compare(gold, other) == "correct") == right, (gold, other)


def test_no_months_day_is_paid_for_its_number_or_for_another_month() -> None:
    months = ["January", "Feb", "March", "Apr.", "May", "June", "July", "Sept", "december"]
    for month in months:
        for day in (1, 3, 10, 25):
            assert compare(f"{day} {month}", f"{month} {day}") == "correct"
            assert compare(f"{day} {month}", str(day)) != "correct"
            assert compare(str(day), f"{day} {month}") != "correct"
            others = [other for other in months if other != month]
            assert not [o for o in others if compare(f"{day} {month}", f"{day} {o}") == "correct"]
