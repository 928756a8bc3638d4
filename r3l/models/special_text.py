"""Encodes the text of a special token, in a message or a tool's result, as ordinary tokens.
Otherwise an observation could end its turn and forge another one.

    message ─► marked ─► chat template ─► encode: special tokens of the template alone
               <|im_end|> has a break after its first character, at which the text is encoded apart
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

_ESCAPE = "\ufdd0"  # a noncharacter, which no text should hold
BREAK, _OWN = f"{_ESCAPE}0", f"{_ESCAPE}1"
"""BREAK: the mark at which a text is cut, to be encoded in pieces. _OWN: the mark for an `_ESCAPE`
of the text itself."""
_KEPT = ("role", "type")
"""Fields of a message that a template reads as names, if they are words."""
_LIKE_MARKUP = re.compile(r"[<\[].*[>\]]", re.DOTALL)
_ANCHOR = "\n"
_Pattern = re.Pattern[str] | None


class SpecialText:
    """Marks the texts of a tokenizer's special tokens, and encodes texts that hold marks.

    `counted`: how many marked texts there were since the last `take`. Several objects may share it.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        self._added = {str(token): bool(token.special) for token in added.values()}
        ids = getattr(tokenizer, "all_special_ids", ())
        self._texts = {text for text, special in self._added.items() if special}
        self._texts |= {str(tokenizer.convert_ids_to_tokens(i)) for i in ids}
        self._tokens = _pattern(text for text in self._texts if not _is_reasoning(text))
        self._set_patterns()
        self.counted = Counter[str]()

    def add_from(self, frame: str) -> None:
        """Also treats added tokens that look like <markup> as special if they occur in `frame`, a
        template's own text. Words, and the tags of reasoning, stay as they are."""
        own = [text for text in self._added if text in frame and _LIKE_MARKUP.fullmatch(text)]
        self._texts |= {text for text in own if not _is_reasoning(text)}
        self._set_patterns()

    def _set_patterns(self) -> None:
        self._pattern = _pattern(self._texts)
        # A template looks for the tags of reasoning in a reply, to leave its reasoning out.
        self._in_replies = _pattern(text for text in self._texts if not _is_reasoning(text))

    def marked(self, value: Any) -> Any:
        """Returns a message, or another plain value, with marks in the texts of special tokens.
        Leaves the tags of reasoning in replies as they are."""
        return self._marked(value, self._pattern)

    def in_reply(self, text: str) -> str | None:
        """Returns the first text of a special token in a reply, or None. Leaves out the tags of
        reasoning, and what only the template treats as special."""
        found = self._tokens.search(text) if self._tokens else None
        return found[0] if found else None

    def _marked(self, value: Any, pattern: _Pattern) -> Any:
        made: list[Any] = [None]
        waiting: list[tuple[Any, Any, Any, _Pattern]] = [(made, 0, value, pattern)]
        while waiting:  # no recursion: agents nest values as deeply as they like
            holder, place, each, pattern = waiting.pop()
            if isinstance(each, str):
                holder[place] = self._marked_text(each, pattern)
            elif isinstance(each, dict):
                pattern = self._in_replies if each.get("role") == "assistant" else pattern
                holder[place] = own = {}
                for key, inner in each.items():
                    name = self._marked_key(key, pattern)
                    own[name] = inner  # keeps the order
                    if not _is_name(key, inner):
                        waiting.append((own, name, inner, pattern))
            elif isinstance(each, list | tuple):
                holder[place] = items = list(each)
                waiting += [(items, n, inner, pattern) for n, inner in enumerate(each)]
            else:
                holder[place] = each
        return made[0]

    def _marked_key(self, key: Any, pattern: _Pattern) -> Any:
        """Marks a name that an agent made up. Leaves words alone, since a template may look for
        them."""
        is_word = not isinstance(key, str) or key.isidentifier()
        return key if is_word else self._marked_text(key, pattern)

    def encode(self, text: str) -> list[int]:
        """Returns the tokens of a text. Encodes it piece by piece if it has marks."""
        if _ESCAPE not in text:
            return self._encode(text)
        first, *rest = (piece.replace(_OWN, _ESCAPE) for piece in text.split(BREAK))
        ids = self._encode(first)
        for piece in rest:
            ids += self._encode_inside(piece)
        return ids

    def take(self) -> int:
        """Returns how many marked texts there were, and counts from 0 again."""
        return self.counted.pop("texts", 0)

    def _marked_text(self, text: str, pattern: _Pattern) -> str:
        if pattern is None or (_ESCAPE not in text and not pattern.search(text)):
            return text
        self.counted["texts"] += 1
        pieces, begun = [], 0
        for at in _places(text, pattern):
            pieces.append(text[begun : at + 1])
            begun = at + 1
        return BREAK.join(piece.replace(_ESCAPE, _OWN) for piece in (*pieces, text[begun:]))

    def _encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text, add_special_tokens=False))

    def _encode_inside(self, text: str) -> list[int]:
        """Encodes a text that continues another one. Some tokenizers begin each text with a space;
        here it is left out."""
        anchor, both = self._encode(_ANCHOR), self._encode(_ANCHOR + text)
        return both[len(anchor) :] if both[: len(anchor)] == anchor else self._encode(text)


def without_marks(text: str) -> str:
    """Returns a rendered text without marks, for a reader."""
    return text.replace(BREAK, "").replace(_OWN, _ESCAPE)


def _is_name(key: Any, value: Any) -> bool:
    return key in _KEPT and isinstance(value, str) and value.isidentifier()


def _is_reasoning(text: str) -> bool:
    return "think" in text.lower()


def _places(text: str, pattern: re.Pattern[str]) -> Iterator[int]:
    """Yields where the texts of special tokens begin, even inside one another."""
    at = -1
    while found := pattern.search(text, at + 1):
        at = found.start()
        yield at


def _pattern(texts: Iterable[str]) -> _Pattern:
    """Makes a pattern for texts of two characters and more; None if there are none."""
    longest_first = sorted((text for text in texts if len(text) > 1), key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
