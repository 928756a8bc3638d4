r"""Compares a mathematical answer with a reference. Both texts are read by the same rules.

    text ─► plain ───────► parts ──────────► leaves, which are equal if they are
            one notation   lists, tuples,    numbers with the same exact fraction,
            without marks  sets, intervals,  the same words,
            and units      matrices          expressions equal by math-verify and CLOSE

An answer is right if it states the whole reference and nothing else. A list may be in any order, a
tuple may not. Words must be units or occur in the reference. Times, dates, ratios and units are
compared by envs.questions.quantities.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from envs.questions.quantities import (
    MONTH_NAMES,
    compared,
    is_inch,
    rates_in_words,
    same_measure,
    units_agree,
)

LONGEST = 2000
"""Longest text that is compared, characters. A longer answer counts as unreadable."""
DEEPEST = 30
"""Deepest nesting of brackets. A parser's time grows steeply with the depth."""
CLOSE = 1e-6
"""Expressions are unequal if their values differ by more than this share of the larger value."""

_TEXT = r"\\(?:text|mbox|mathrm|textbf|mathbf|textit|operatorname)\s*\{([^{}]*)\}"
_WRAPPED = re.compile(_TEXT)
_TEXT_UNIT = re.compile(r"(.*\S)\s*" + _TEXT + r"(?:\s*\^\s*\{?\s*[23]\s*\}?)?[. ]*", re.DOTALL)
_REMOVED = re.compile(
    r"\\(?:left|right|displaystyle|textstyle|[bB]igg?[lr]?|quad|qquad)(?![a-zA-Z])"
    r"|(?<!\\)\\[,!;: ]|~|\*\*"
)
_MARKS = re.compile(r"\\\$|\$|\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°")
_PERCENT = re.compile(r"\\?%")
_PER_CENT = re.compile(r"(?<=\d)\s*(?:percent|per cent)(?![a-zA-Z])")
_DOLLARS = re.compile(r"\\\$|^\$(?=[^$]*$)")
_SYNONYMS = [
    (re.compile(rf"\\(?:{names})(?![a-zA-Z])|{sign}"), rf"\\{name} ")
    for name, names, sign in (
        ("geq", "geq?|geqslant", "≥|>="), ("leq", "leq?|leqslant", "≤|<="),
        ("neq", "neq?", "≠"), ("emptyset", "emptyset|varnothing", "∅"),
    )
]  # fmt: skip
_COLON = re.compile(r"\\(?:colon|mathbin\{:\}|ratio)(?![a-zA-Z])|∶")
_GROUPED = re.compile(r"(?<![\d.,])[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_SPACED_DIGITS = re.compile(r"(?<=\d)(?:\\[,!;: ]|\{,\}|,\\!)\s*(?=\d{3})")
_FRACTION = re.compile(
    r"\\[dt]?frac\s*(?:(\d)\s*(\d)|\{([^{}]*)\}\s*(\d)|(\d)\s*\{([^{}]*)\}|(?=\{))"
)
_SIGN_AND_SPACE = r"\s*([+-]?)\s*"
_MIXED = re.compile(_SIGN_AND_SPACE + r"(\d+)\s*(?:\s(\d+)\s*/\s*(\d+)|\\frac\{(\d+)\}\{(\d+)\})")
_RATIO = re.compile(
    _SIGN_AND_SPACE + r"(?:\\frac\{\s*([+-]?\d+)\s*\}\{\s*([+-]?\d+)\s*\}|(\d+)\s*/\s*([+-]?\d+))"
)
_DECIMAL = re.compile(_SIGN_AND_SPACE + r"((?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d{1,3})?)")
_UNIT = re.compile(r"(.*[\d})\]])(\s*)([A-Za-z]{2,}(?:[ .-]+[A-Za-z]{2,}){0,3})[. ]*", re.DOTALL)
_LETTER_UNIT = re.compile(r"([\d.,]+)\s*([mgshlL](?:\s*/\s*[sh])?)")
_LETTERS = re.compile(r"(\\?)([a-zA-Z]+)")
_BASE = re.compile(r"([0-9A-Za-z]+)\s*_\s*\{?\s*(\d+)\s*\}?")
_NAME = re.compile(r"([a-zA-Z](?:\([a-zA-Z]\))?)\s*(?:=|\\in(?![a-zA-Z]))\s*")
_SEPARATOR = re.compile(r"\\cup(?![a-zA-Z])|[,;]|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_CHOICE = re.compile(r"\(\s*([A-Z])\s*\)")
_MATRIX = re.compile(r"\\begin\{([pbvBV]?matrix)\}(.*)\\end\{\1\}", re.DOTALL)

_SAME_SIGN = str.maketrans({"−": "-", "–": "-", "×": "*", "·": "*", "÷": "/", "，": ","})
_LIKE_LATEX = (("π", r"\pi "), ("∞", r"\infty "), ("√", r"\sqrt "), ("±", r"\pm "), ("∪", r"\cup "))
_SHORT_UNITS = frozenset(
    "cm mm km kg mg ml in ft yd mi hr lb oz mph kph kmph tbsp tsp kcal".split()
)
_MEANING = frozenset(
    "almost and any approximately are around at billion but by cannot dozen either except false "
    "few half hundred if infinite is isn less many million minus more most much neither never no "
    "none nor not off one or other over plus score some than thousand times too trillion twice "
    "under unless up wrong zero".split()
)
"""Words that change the meaning of the number before them, so they are not units."""
_COMMANDS = frozenset(
    "frac sqrt pi cdot times div pm mp infty cup in binom begin end pmatrix bmatrix matrix "
    "sin cos tan cot sec csc log ln exp arcsin arccos arctan sinh cosh tanh "
    "theta phi alpha beta gamma delta lambda mu omega sigma".split()
)
_RELATIONS = frozenset("=<>≤≥≠≈~:?|&@#")
_UNORDERED = frozenset(("list", "set"))


@dataclass(frozen=True)
class Parts:
    """A text split at its outermost separators.

    `kind`: `leaf` (one member); `list`, `set` or `union` (any order); `rows N` (a matrix with N
    columns); or the brackets of a tuple or an interval, such as `(]`.
    """

    kind: str
    members: tuple[str, ...]


def compare(gold: str, answer: str) -> str:
    """Returns a verdict: `correct`, `wrong`, `unreadable` (also if a library raises) or `bad_gold`
    (`gold` is empty)."""
    reference, unit = _measured(gold)
    if not reference:
        return "bad_gold"
    if len(answer) > LONGEST or depth(answer) > DEEPEST:
        return "unreadable"
    given, other = _measured(answer)
    if same_measure(unit, other):  # so that a letter is no variable
        reference, given = _without_letter(reference), _without_letter(given)
    try:
        if units_agree(unit, other) and same(reference, given):
            return "correct"
        return "wrong" if given and _readable(given) else "unreadable"
    except (Exception, RecursionError):
        return "unreadable"


def _without_letter(text: str) -> str:
    found = _LETTER_UNIT.fullmatch(text)
    return found[1] if found else text


def depth(text: str) -> int:
    """Returns how deeply a text nests brackets. Counts unclosed brackets too."""
    level = deepest = 0
    for character in text:
        level = max(0, level + (character in "([{") - (character in ")]}"))
        deepest = max(deepest, level)
    return deepest


def plain(text: str) -> str:
    r"""Rewrites a text in one notation. For example, removes math delimiters and units, and writes
    LaTeX fractions as `\frac{a}{b}`."""
    return _measured(text)[0]


def _measured(text: str) -> tuple[str, str]:
    """Returns a text as `plain` does, and the words of its unit."""
    text, units = text.strip(), []
    for begin, end in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), (r"\boxed{", "}")):
        if text.startswith(begin) and text.rstrip(". ").endswith(end) and len(text) > len(begin):
            text = text.rstrip(". ")[len(begin) : -len(end)].strip()
    text = text.translate(_SAME_SIGN)
    for sign, command in _LIKE_LATEX:
        text = text.replace(sign, command)
    for names, name in _SYNONYMS:
        text = names.sub(name, text)
    text = _COLON.sub(":", _PER_CENT.sub("%", text))
    text = _REMOVED.sub(" ", _SPACED_DIGITS.sub("", text))
    units += ["dollar"] * bool(_DOLLARS.search(text))
    units += ["percent"] * bool(_PERCENT.search(text))
    units += ["degree"] * ("circ" in text or "°" in text)
    text = _MARKS.sub(" ", text)
    if (unit := _TEXT_UNIT.fullmatch(text)) and _is_unit(unit[2]):
        units.append(text[len(unit[1]) :].replace("\\text", " ").replace("\\mathrm", " "))
        text = unit[1]
    text = _FRACTION.sub(_braced, _WRAPPED.sub(r" \1 ", text))
    if not set("([") & set(text) and r"\{" not in text:
        text = _GROUPED.sub(lambda found: found[0].replace(",", ""), text)
    text = rates_in_words(" ".join(text.split()).rstrip(".: ").strip())
    if (unit := _UNIT.fullmatch(text)) and _is_unit(unit[3], joined=not unit[2]):
        units.append(unit[3])
        text = unit[1]
    elif letter := _LETTER_UNIT.fullmatch(text):  # or a variable: it stays in the text
        units.append(letter[2])
    return text, " ".join(units)


def _braced(found: re.Match[str]) -> str:
    parts = [part for part in found.groups() if part is not None]
    return rf"\frac{{{parts[0]}}}{{{parts[1]}}}" if parts else r"\frac"


def _is_unit(text: str, *, joined: bool = False) -> bool:
    """Returns whether `text` is a unit. `joined`: whether `text` directly follows the value."""
    words = re.findall(r"[a-z]+", text.lower())
    known = all(word in _SHORT_UNITS for word in words)
    long = joined is False and all(
        len(word) > 2 or word in _SHORT_UNITS | {"of", "sq", "cu"} for word in words
    )
    other = _MEANING | _COMMANDS | MONTH_NAMES
    return bool(words) and (known or long) and (is_inch(words) or not other & set(words))


def same(gold: str, answer: str) -> bool:
    """Returns whether two texts from `plain` are the same value, list, tuple, matrix or words."""
    if not answer:
        return False
    if _squeezed(gold) == _squeezed(answer):
        return True
    if (verdict := compared(gold, answer, same, number)) is not None:
        return verdict
    if _is_words(gold):
        return gold.lower() == answer.lower().strip("() ")
    if choice := _CHOICE.fullmatch(gold):
        return answer.strip("() .") == choice[1]
    if "_" in gold or "_" in answer:
        known, given = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
        return known is not None and given is not None and known.groups() == given.groups()
    gold, answer = _without_name(gold, answer)
    ours, theirs = split(gold), split(answer)
    if ours.kind == theirs.kind == "leaf":
        return _same_leaf(ours.members[0], theirs.members[0])
    if len(ours.members) != len(theirs.members):
        return False
    if ours.kind in _UNORDERED or ours.kind == "union":
        fits = theirs.kind in _UNORDERED if ours.kind in _UNORDERED else theirs.kind == "union"
        return fits and _matched(ours.members, list(theirs.members))
    bare = ours.kind == "()" and theirs.kind == "list"  # a point without its brackets
    return (ours.kind == theirs.kind or bare) and all(map(same, ours.members, theirs.members))


def split(text: str) -> Parts:
    """Splits a text at its outermost separators. If the text is one expression in round
    brackets, splits the expression inside."""
    if matrix := _MATRIX.fullmatch(text):
        rows = [row.split("&") for row in re.split(r"\\\\", matrix[2]) if row.strip()]
        cells = tuple(cell.strip() for row in rows for cell in row)
        return Parts(f"rows {len(rows[0]) if rows else 0}", cells)
    separators, members = _cut(text)
    if len(members) > 1:
        kind = "union" if all(s == r"\cup" for s in separators) else "list"
        return Parts(kind, tuple(part for member in members for part in _signs(member)))
    brackets, inside = _brackets(text)
    if brackets:
        _, members = _cut(inside)
        if len(members) > 1:
            return Parts(brackets, tuple(p for m in members for p in _signs(m)))
        if brackets == "set":
            return Parts("set", tuple(_signs(inside)))
        if brackets == "()":
            return split(inside)
    signed = _signs(text)
    return Parts("list", tuple(signed)) if len(signed) > 1 else Parts("leaf", (text,))


def _cut(text: str) -> tuple[list[str], list[str]]:
    """Returns the separators and the members at the outermost bracket level."""
    separators, members, level, begun, at = [], [], 0, 0, 0
    while at < len(text):
        if text[at] in "([{":
            level += 1
        elif text[at] in ")]}":
            level -= 1
        elif level == 0 and (found := _SEPARATOR.match(text, at)):
            if member := text[begun:at].strip():
                members.append(member)
                separators.append(found[0])
            at = begun = found.end()
            continue
        at += 1
    if last := text[begun:].strip():
        members.append(last)
    return separators, members


def _brackets(text: str) -> tuple[str, str]:
    """Returns the kind and the content of the brackets around a whole text; ("", text) if none."""
    for begin, end, kind in (
        (r"\{", r"\}", "set"), ("{", "}", "set"), ("(", ")", "()"), ("(", "]", "(]"),
        ("[", ")", "[)"), ("[", "]", "[]"),
    ):  # fmt: skip
        if text.startswith(begin) and text.endswith(end) and len(text) > len(begin + end):
            level = 0
            for at, character in enumerate(text):
                level += (character in "([{") - (character in ")]}")
                if level == 0 and character in ")]}" and at < len(text) - 1:
                    return "", text
            return kind, text[len(begin) : -len(end)].strip()
    return "", text


def _signs(text: str) -> list[str]:
    r"""Returns the two values of an expression with one \pm, or else the expression itself."""
    signs = ("+", "-") if text.count(r"\pm") == 1 else (r"\pm",)
    return [text.replace(r"\pm", sign) for sign in signs]


def _matched(gold: Sequence[str], answer: list[str]) -> bool:
    """Returns whether the members of both lists match one to one, in any order."""
    for member in gold:
        partner = next((at for at, other in enumerate(answer) if same(member, other)), None)
        if partner is None:
            return False
        del answer[partner]
    return not answer


def _without_name(gold: str, answer: str) -> tuple[str, str]:
    """Removes a name such as `x =` from the start of both texts. Keeps names that differ."""
    ours, theirs = _NAME.match(gold), _NAME.match(answer)
    if ours and theirs and ours[1] != theirs[1]:
        return gold, answer
    return (gold[ours.end() :] if ours else gold), (answer[theirs.end() :] if theirs else answer)


def _same_leaf(gold: str, answer: str) -> bool:
    if (verdict := compared(gold, answer, same, number)) is not None:
        return verdict  # what was in brackets
    known, given = number(gold), number(answer)
    if known is not None and given is not None:
        shares = [v / 100 if "%" in text else v for v, text in ((known, gold), (given, answer))]
        return known == given or shares[0] == shares[1]  # 10 % is also written 10, and 0.1
    return _same_language(gold, answer) and _verified(gold, answer)


def number(text: str) -> Fraction | None:
    """Returns the exact value of a whole number, decimal, fraction or mixed number, ignoring `%`;
    None if the text is anything else."""
    text = _PERCENT.sub("", text).strip()
    if mixed := _MIXED.fullmatch(text):
        sign, whole, *parts = mixed.groups()
        top, bottom = (int(part) for part in parts if part is not None)
        if 0 < top < bottom:
            value = int(whole) + Fraction(top, bottom)
            return -value if sign == "-" else value
        return None
    if ratio := _RATIO.fullmatch(text):
        sign, *parts = ratio.groups()
        top, bottom = (int(part) for part in parts if part is not None)
        return None if bottom == 0 else Fraction(-top if sign == "-" else top, bottom)
    if decimal := _DECIMAL.fullmatch(text):
        value = Fraction(Decimal(decimal[2]))
        return -value if decimal[1] == "-" else value
    return None


def _same_language(gold: str, answer: str) -> bool:
    """Whether the reference has all letters, commands and relation signs of an answer. The names in
    _COMMANDS, i and e are always allowed. Returns False for a mixed number."""
    symbols = {letter for slash, run in _LETTERS.findall(gold) if not slash for letter in run}
    commands = _COMMANDS | {run for slash, run in _LETTERS.findall(gold) if slash}
    for slash, run in _LETTERS.findall(answer):
        if slash and run not in commands:
            return False
        if not slash and run not in _COMMANDS and not set(run) <= symbols | set("ie"):
            return False
    mixed = re.search(r"[\d}]\s+\d|\d\s*\\frac\{\d+\}\{\d+\}", answer)
    return not (set(answer) & _RELATIONS) - set(gold) and not mixed


def _verified(gold: str, answer: str) -> bool:
    from math_verify import verify

    if ":" in gold + answer:
        return False  # it would divide
    known, given = _read(gold), _read(answer)
    if not known or not given or not verify(known, given, timeout_seconds=None):
        return False
    return _close(known[0], given[0])


def _close(gold: Any, answer: Any) -> bool:
    """Returns whether two numbers differ by at most CLOSE times the larger one."""
    if not (getattr(gold, "is_number", False) and getattr(answer, "is_number", False)):
        return True  # for an expression, math-verify has the last word
    ours, theirs = gold.evalf(30), answer.evalf(30)
    largest = max(abs(ours), abs(theirs))
    return bool(largest == 0 or abs(ours - theirs) <= CLOSE * largest)


def _read(text: str) -> list[Any]:
    from math_verify import parse

    return list(parse(f"\\boxed{{{text}}}", parsing_timeout=None))


def _readable(text: str) -> bool:
    return split(text).kind != "leaf" or number(text) is not None or bool(_read(text))


def _squeezed(text: str) -> str:
    """Removes meaningless spaces and a leading plus."""
    return re.sub(r"(?<![A-Za-z0-9]) | (?![A-Za-z0-9])", "", text).removeprefix("+")


def _is_words(text: str) -> bool:
    """Whether a reference is words, for example a name, and not an expression."""
    runs = [run for slash, run in _LETTERS.findall(text) if not slash and run not in _COMMANDS]
    return any(len(run) > 2 for run in runs) and not re.search(r"[\d\\+*/^=_]", text)
