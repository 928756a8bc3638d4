"""A reply ends before its stop text, however the tokenizer cuts the text.

The tokenizers have a token for every run of up to three bytes (or characters) of a small alphabet,
so a token may hold a stop text and more, and may begin or end inside a character.
"""

from functools import cache
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from tokenizers.decoders import DecodeStream
from transformers import PreTrainedTokenizerFast

from actors.gateway.parsers import ReplyReader
from r3l.rollout.agent_chat import PROBE_TOOLS, AgentChat
from r3l.rollout.chat import ChatFormat
from tests.r3l.fakes import CHATML
from tests.r3l.rollout.test_agent_chat import QWEN

LETTERS = "ab:\n é€"
SPECIAL = ["<|im_start|>", "<|im_end|>", "<think>", "</think>"]
CALL = '<tool_call>\n{"name": "add_one", "arguments": {"a": 1}}\n</tool_call>'


def of_bytes(template: str) -> Any:
    """Tokens of one to three bytes, as those of GPT-2 and Qwen."""
    shown = pre_tokenizers.ByteLevel.alphabet()
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_of = {letter: inner.pre_tokenizer.pre_tokenize_str(letter)[0][0] for letter in LETTERS}
    single = sorted({char for text in byte_of.values() for char in text})
    pairs = [*product(single, repeat=2)]
    merges = [*pairs, *((a + b, c) for a, b in pairs for c in single)]
    words = [*SPECIAL, *sorted(shown), *(a + b for a, b in merges)]
    core = models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=merges)
    inner.model, inner.decoder = core, decoders.ByteLevel()
    return finished(inner, template)


def of_pieces(template: str) -> Any:
    """Tokens of one to three characters, as those of Llama 2 and Mistral: a text loses the space
    at its beginning."""
    letters = [*map(chr, range(33, 127)), "\n", "▁", "é", "€"]
    near = list(LETTERS.replace(" ", "▁"))
    pairs = [*product(near, repeat=2)]
    merges = [*pairs, *((a + b, c) for a, b in pairs for c in near)]
    words = [*SPECIAL, *letters, *(a + b for a, b in merges)]
    inner = Tokenizer(models.BPE(vocab={word: n for n, word in enumerate(words)}, merges=merges))
    inner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=False)
    inner.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return finished(inner, template)


def finished(inner: Any, template: str) -> Any:
    inner.add_special_tokens([AddedToken(each, normalized=False) for each in SPECIAL[:2]])
    inner.add_tokens([AddedToken(each, normalized=False, special=False) for each in SPECIAL[2:]])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>")
    made.chat_template = template
    return made


@cache
def reader(kind: str, template: str = CHATML, reasoning: str = "none") -> ReplyReader:
    made = {"bytes": of_bytes, "pieces": of_pieces}[kind](template)
    return ReplyReader(AgentChat(ChatFormat(made)), "auto", reasoning)


def sampled(reader: ReplyReader, ids: list[int], stop: list[str]) -> tuple[int, ...]:
    """The tokens that the engine samples of `ids`: up to the one that completes a stop text in the
    text so far, or all of them and the end token."""
    tokenizer = reader.tokenizer
    stream, text = DecodeStream([*reader.chat.chat.prompt_ids], skip_special_tokens=False), ""
    for n, token in enumerate(ids):
        text += stream.step(tokenizer.backend_tokenizer, token) or ""
        if any(each in text for each in stop):
            return tuple(ids[: n + 1])
    return (*ids, reader.chat.chat.end_id)


def before(text: str, stop: list[str]) -> str | None:
    """The text before the stop text that is complete first as the text grows by a character at a
    time; None if there is none."""
    for n in range(1, len(text) + 1):
        ends = [each for each in stop if text[:n].endswith(each)]
        if ends:
            return text[: n - max(map(len, ends))]
    return None


TEXTS = st.text(LETTERS, max_size=24)
STOPS = st.lists(st.text(LETTERS, min_size=1, max_size=4), max_size=3)


def cut_anywhere(kind: str, text: str, sizes: list[int]) -> list[int]:
    """Token ids that spell a text, of any cut: not those that the tokenizer itself would choose."""
    tokenizer = reader(kind).tokenizer
    model = tokenizer.backend_tokenizer
    if kind == "bytes":
        spelled = "".join(piece for piece, _ in model.pre_tokenizer.pre_tokenize_str(text))
    else:
        spelled = text.replace(" ", "▁")
    ids, at = [], 0
    while at < len(spelled):
        size = sizes[len(ids) % len(sizes)]
        ids.append(tokenizer.convert_tokens_to_ids(spelled[at : at + size]))
        at += size
    return ids


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@settings(max_examples=300, deadline=None)
@given(TEXTS, STOPS, st.lists(st.integers(1, 3), min_size=1, max_size=9))
def test_a_reply_is_the_text_before_the_first_stop_text_however_it_is_cut(
    kind: str, text: str, stop: list[str], sizes: list[int]
) -> None:
    ids = cut_anywhere(kind, text, sizes)
    read = reader(kind).read(sampled(reader(kind), ids, stop), (), "auto", stop)
    expected = before(text, stop)
    assert read.text == (text.strip() if expected is None else expected)
    assert not any(each in read.text for each in stop) or expected is None
    assert bool(read.stop) == (expected is not None)
    assert expected is None or text.startswith(expected + read.stop)


@pytest.mark.parametrize("kind", ["bytes", "pieces"])
@settings(max_examples=100, deadline=None)
@given(TEXTS, STOPS.filter(bool), st.lists(st.integers(1, 3), min_size=1, max_size=9))
def test_nothing_from_the_stop_text_on_reaches_an_agent_through_the_reasoning(
    kind: str, text: str, stop: list[str], sizes: list[int]
) -> None:
    made = reader(kind, CHATML, "qwen3")
    start, end = made.tokenizer.convert_tokens_to_ids(["<think>", "</think>"])
    thought, said = text[: len(text) // 2], text[len(text) // 2 :]
    ids = [start, *cut_anywhere(kind, thought, sizes), end, *cut_anywhere(kind, said, sizes)]
    read = made.read(sampled(made, ids, stop), (), "auto", stop)
    cut = before(thought, stop)
    if cut is not None:
        assert (read.reasoning, read.text) == (cut.strip(), "")
        return
    assert read.reasoning == thought.strip()
    expected = before(said, stop)
    assert read.text == (said.strip() if expected is None else expected)


@pytest.mark.parametrize(
    ("stop", "text", "calls"),
    [
        ("</tool_call>", "so\n", 1),  # all of the call was said before it
        ("}}\n", 'so\n<tool_call>\n{"name": "add_one", "arguments": {"a": 1', 0),
        ("<tool_call>", "so\n", 0),
        ("\n}", "so", 1),  # not in the reply
    ],
)
def test_a_stop_text_inside_a_tool_call(stop: str, text: str, calls: int) -> None:
    made = reader("bytes", QWEN)
    ids = [*made.tokenizer.encode(f"so\n{CALL}", add_special_tokens=False)]
    reply = made.read(sampled(made, ids, [stop]), PROBE_TOOLS, "auto", [stop])
    assert (reply.text.rstrip("\n"), len(reply.calls)) == (text.rstrip("\n"), calls)
    assert reply.broken == (stop == "}}\n")


@pytest.mark.parametrize(
    ("said", "stop", "expected"),
    [
        ('{"a": 1}', ["\n}"], '{"a": 1}'),
        ('{\n"a": 1\n}', ["\n}"], '{\n"a": 1'),
        ("Thought: so \nObservation: x = 3", ["Observation:"], "Thought: so \n"),
        ("one  END", ["  END", "END"], "one"),
        ("abcd", ["bcd", "c"], "ab"),
        ("a€b", ["€"], "a"),
        ("  x", ["x"], "  "),
        ("  x  ", ["y"], "x"),
    ],
)
def test_a_reply_of_one_token_or_of_many_ends_before_its_stop_text(
    said: str, stop: list[str], expected: str
) -> None:
    made = reader("bytes")
    ids = made.tokenizer.encode(said, add_special_tokens=False)
    assert made.read(sampled(made, ids, stop), (), "auto", stop).text == expected
