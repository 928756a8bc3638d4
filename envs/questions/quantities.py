"""Compares what only looks like arithmetic: times, dates, ratios and units of measure.

2:30 pm   a time: equal to 14:30 and 02:30 PM; not to 2:30 am, 1:15 pm or 2.5
3:2       a ratio: equal to 6:4, since neither looks like a time; not to 1.5 or 2:3
May 3     a date: equal to 3rd May; not to 3
1.2.3     no number: equal to itself alone; so are years such as 2019-2020
5 cm      a quantity: equal to 5 and 5 centimeters, not to 5 m
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

_TIME = re.compile(r"(\d{1,2})(?:\s*:\s*(\d\d))?(?:\s*:\s*(\d\d))?\s*(?:([ap])\.?\s*m\.?)?", re.I)
_RATIO_NAME = re.compile(r"[A-Za-z]\w*(?:\s*:\s*[A-Za-z]\w*)+\s*=\s*")
_NUMBERED = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})|(\d{1,2})([-/.])(\d{1,2})\6(\d{4})")
_DOTTED = re.compile(r"\d\.\d+\.\d")
_YEARS = re.compile(r"((?:1[5-9]|20)\d\d)\s*(?:-|to)\s*((?:1[5-9]|20)\d\d)")
_TO = re.compile(r"\d+(?:\.\d+)?(?:\s+to\s+\d+(?:\.\d+)?)+")
_WHOLE = re.compile(r"\([^()]*\)")
_LISTED = re.compile(r"[,;]|\\cup(?![a-zA-Z])|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_MONTHS = (
    "january february march april may june july august september october november december"
).split()
_MONTH = rf"(?P<month>{'|'.join(_MONTHS)}|(?:{'|'.join(m[:3] for m in _MONTHS)}|sept)\b\.?)"
_DAY = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_YEAR = r"(?:\s*,?\s*(?P<year>\d{4}))?"
_DATES = [
    re.compile(form, re.I)
    for form in (rf"{_MONTH}\s+{_DAY}{_YEAR}", rf"{_DAY}\s+(?:of\s+)?{_MONTH}{_YEAR}")
]

MONTH_NAMES = frozenset((*_MONTHS, *(month[:3] for month in _MONTHS), "sept"))
"""Names of months, full and short. None of them is a unit."""

Same = Callable[[str, str], bool]
Number = Callable[[str], Fraction | None]


@dataclass(frozen=True)
class _Time:
    """A time as written. `half`: "a", "p" or "" (a time of 24 hours, or unknown)."""

    parts: tuple[int, ...]
    half: str

    @property
    def of_day(self) -> tuple[int, ...] | None:
        """The time of 24 hours; None if the half of the day is unknown."""
        hour, *rest = self.parts
        if self.half:
            hour = hour % 12 + 12 * (self.half == "p")
        elif 0 < hour < 13:
            return None
        return (hour, *rest)


def compared(gold: str, answer: str, same: Same, number: Number) -> bool | None:
    """Compares two texts if at least one of them is a time, a date, a ratio, a span of years, or
    digits with several dots, as in 3.1.2. Otherwise returns None. `same`: compares parts of ratios.
    `number`: reads a part as a number."""
    gold, answer = (
        text.strip("() ") if _WHOLE.fullmatch(text) else text for text in (gold, answer)
    )
    if (ours := _date(gold)) is not None or _date(answer) is not None:
        return ours is not None and ours == _date(answer)
    if any(_DOTTED.search(text) and not _LISTED.search(text) for text in (gold, answer)):
        return gold == answer
    if (years := _YEARS.fullmatch(gold)) or _YEARS.fullmatch(answer):
        others = _YEARS.fullmatch(answer)
        return bool(years and others and years.groups() == others.groups())
    early, late = _time(gold), _time(answer)
    if early is None and late is not None and late.half and re.fullmatch(r"\d{1,2}", gold):
        early = _Time((int(gold), 0), "")  # the hour alone
    if early is not None and late is not None:
        return _same_time(early, late)
    known, given = _ratio(gold), _ratio(answer)
    if not known and not given:
        return None if early is None and late is None else False
    if len(known) != len(given) or early is not None or late is not None:
        return False
    ranges = _TO.fullmatch(gold) and _TO.fullmatch(answer)  # 1 to 2 is perhaps no ratio
    return all(map(same, known, given)) or (not ranges and _proportional(known, given, number))


def _same_time(gold: _Time, answer: _Time) -> bool:
    if gold.half == answer.half or (answer.half and gold.of_day is None):
        return _full(gold.parts) == _full(answer.parts)
    return gold.of_day is not None and _full(gold.of_day) == _full(answer.of_day or ())


def _full(parts: tuple[int, ...]) -> tuple[int, ...]:
    """Adds zero seconds to a time without seconds."""
    return (*parts, 0) if len(parts) == 2 else parts


def _time(text: str) -> _Time | None:
    found = _TIME.fullmatch(text.strip())
    if found is None or not (found[2] or found[4]):
        return None
    half = (found[4] or "").lower()
    parts = (int(found[1]), int(found[2] or 0), *([int(found[3])] if found[3] else []))
    most = 12 if half else 24
    return None if parts[0] > most or any(part > 59 for part in parts[1:]) else _Time(parts, half)


def _date(text: str) -> tuple[int, ...] | None:
    """Returns the numbers of a date in the order year, month, day; those of 5/3/2020, as
    written."""
    text = text.strip()
    if found := _NUMBERED.fullmatch(text):
        return tuple(int(part) for part in found.groups() if part and part.isdigit())
    for form in _DATES:
        if found := form.fullmatch(text):
            month = [name[:3] for name in _MONTHS].index(found["month"][:3].lower()) + 1
            return int(found["year"] or 0), month, int(found["day"])
    return None


def _ratio(text: str) -> tuple[str, ...]:
    """Returns the parts of a ratio such as 3:2 or 3 to 2. Returns () for anything else, such as a
    list."""
    text = re.sub(r"\s+to\s+", ":", text) if _TO.fullmatch(text) else text
    text, level, parts, outside = _RATIO_NAME.sub("", text, count=1), 0, [""], ""
    for character in text:
        level += (character in "([{") - (character in ")]}")
        outside += character if level == 0 else ""
        if character == ":" and level == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [part.strip() for part in parts]
    return tuple(parts) if len(parts) > 1 and all(parts) and not _LISTED.search(outside) else ()


def _proportional(gold: tuple[str, ...], answer: tuple[str, ...], number: Number) -> bool:
    known, given = [*map(number, gold)], [*map(number, answer)]
    pairs = [(a, b) for a, b in zip(known, given, strict=True) if a is not None and b is not None]
    if len(pairs) < len(gold) or any(a <= 0 or b <= 0 for a, b in pairs):
        return False
    return len({a / b for a, b in pairs}) == 1


# ── units ───────────────────────────────────────────────────────────────────────────────

_UNITS = {
    short: words.split()[0]
    for words in (
        "mm millimeter millimetre", "cm centimeter centimetre", "m meter metre",
        "km kilometer kilometre", "inch inche", "ft foot feet", "yd yard", "mi mile",
        "mg milligram", "g gram", "kg kilogram kilo", "lb pound", "oz ounce", "ton tonne",
        "s sec second", "min minute", "h hr hour", "day", "week", "month", "year", "ml milliliter",
        "l liter litre", "gallon gal", "quart", "pint", "cup", "tbsp tablespoon", "tsp teaspoon",
        "dollar usd", "cent", "euro", "degree", "radian", "kcal kilocalorie", "calorie", "percent",
    )
    for short in words.split()
}  # fmt: skip
"""Units of measure without a plural's s, by each of their names."""
_SPEEDS = {"mph": "mile per hour", "kph": "km per hour", "kmph": "km per hour"}
_RATE = re.compile(
    r"([A-Za-z]{2,})\s*/\s*(h|hr|hour|s|sec|second|min|minute|day|week|month|year)s?[. ]*$"
)
_SQUARE = {"square": 2, "sq": 2, "squared": 2, "cubic": 3, "cu": 3, "cubed": 3}
_PER = frozenset("per a an each every".split())
_EMPTY = frozenset("of the in total long high wide tall old away unit and".split()) | _PER
_RATE_LEFT_OUT = frozenset(("dollar", "cent", "euro", _UNITS["hour"], _UNITS["minute"]))
"""Measures whose `per day` may be left out. With a length it may not: that is a speed."""


@dataclass(frozen=True)
class _Unit:
    """The words after a number: units of measure before and after `per`, other words, power."""

    measures: frozenset[str]
    rate: frozenset[str]
    words: frozenset[str]
    power: int


def rates_in_words(text: str) -> str:
    """Writes `per` in a unit at the end of a text: `5 km/h` becomes `5 km per hour`."""
    found = _RATE.search(text)
    if found is None or _singular(found[1].lower()) not in _UNITS:
        return text
    time = {"h": "hour", "s": "sec"}.get(found[2], found[2])
    return f"{text[: found.start()]}{found[1]} per {time}"


def is_inch(words: list[str]) -> bool:
    """Whether the word `in` is a unit: nothing but `square` or `cubic` is beside it."""
    return "in" in words and not set(words) - set(_SQUARE) - {"in"}


def same_measure(gold: str, answer: str) -> bool:
    """Whether two texts have the same units of measure, at least one."""
    ours, theirs = _unit(gold), _unit(answer)
    if ours is None or theirs is None or not ours.measures:
        return False
    return (ours.measures, ours.rate, ours.power) == (theirs.measures, theirs.rate, theirs.power)


def units_agree(gold: str, answer: str) -> bool:
    """Whether the units of two texts are the same, or one of them has none. Compares units of
    measure if both texts have them, otherwise the other words."""
    ours, theirs = _unit(gold), _unit(answer)
    if ours is None or theirs is None:
        return True
    if ours.measures and theirs.measures:
        left_out = not (ours.rate and theirs.rate) and ours.measures <= _RATE_LEFT_OUT
        rates_agree = ours.rate == theirs.rate or left_out
        return (ours.measures, ours.power) == (theirs.measures, theirs.power) and rates_agree
    if ours.measures or theirs.measures:
        counted = ours.words | theirs.words
        return not (counted and "percent" in ours.measures | theirs.measures)
    alike = ours.words <= theirs.words or theirs.words <= ours.words
    return ours.power == theirs.power and alike


def _singular(word: str) -> str:
    return word if word in _UNITS else word.removesuffix("s")


def _unit(text: str) -> _Unit | None:
    """Reads the words after a number. Returns None if there are none."""
    found = [word.lower() for word in re.findall(r"[A-Za-z]+|/", text)]
    if not found:
        return None
    powers = [_SQUARE[word] for word in found if word in _SQUARE]
    powers += [int(power) for power in re.findall(r"\^\s*\{?\s*([23])", text)]
    inch = is_inch(found)
    sides: tuple[set[str], set[str]] = (set(), set())
    after, words = False, set[str]()
    for word in " ".join(_SPEEDS.get(word, word) for word in found).split():
        after = after or word in _PER or word == "/"
        name = "inch" if inch and word == "in" else _singular(word)
        if name in _UNITS:
            sides[after].add(_UNITS[name])
        elif word not in _SQUARE and word != "/":
            words.add(name)
    if "percent" in sides[0]:
        sides = {"percent"}, set()  # a quarter of a day is no day
    known = frozenset(words - _EMPTY)
    return _Unit(frozenset(sides[0]), frozenset(sides[1]), known, max(powers, default=1))
