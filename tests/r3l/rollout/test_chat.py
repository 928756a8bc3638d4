"""The increments of a growing conversation are what the chat template itself would write."""

import asyncio
import time
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest

from r3l.errors import UserError
from r3l.records import Task
from r3l.rollout import attempt as rollout
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample, SampleParams
from tests.r3l.fakes import CHATML, CharTokenizer, Corridor
from tests.r3l.rollout.chat_templates import FAMILIES, Family

LLAMA3 = (
    "{% for m in messages %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + m.role + '<|end_header_id|>\n\n' + m.content|trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
# The system message is the head of the first user's; roles must alternate.
MISTRAL = (
    "{% if messages[0].role == 'system' %}{% set note = messages[0].content + '\n\n' %}"
    "{% set turns = messages[1:] %}{% else %}{% set note, turns = '', messages %}{% endif %}"
    "{{ bos_token }}{% for m in turns %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}"
    "{{ '[INST] ' + (note if loop.first else '') + m.content + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content|trim + eos_token }}{% endif %}{% endfor %}"
)
# No system role at all.
MISTRAL_OLD = (
    "{{ bos_token }}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
    "{% if m.role == 'user' %}{{ '[INST] ' + m.content + ' [/INST]' }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
# Words of its own before the last of the user's messages.
WANDERING = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}"
    "{{ '[INST]' + ('Think.' if loop.last else '') + m.content + '[/INST]' }}"
    "{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}"
)
# Reasoning stays only in the last reply.
FORGETFUL = (
    "{% for m in messages %}{% set text = m.content %}"
    "{% if m.role == 'assistant' and not loop.last %}"
    "{% set text = m.content.split('</think>')[-1].lstrip('\n') %}{% endif %}"
    "{{ '<|im_start|>' + m.role + '\n' + text + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIALS = {
    CHATML: ("<|endoftext|>", "<|im_end|>", ["<|im_start|>"]),
    LLAMA3: ("<|begin_of_text|>", "<|eot_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
    MISTRAL: ("<s>", "</s>", ["[INST]", "[/INST]"]),
    MISTRAL_OLD: ("<s>", "</s>", []),
    WANDERING: ("<s>", "</s>", ["[INST]", "[/INST]"]),
    FORGETFUL: ("<|endoftext|>", "<|im_end|>", ["<|im_start|>"]),
}
GOOD = pytest.mark.parametrize(
    "template", [CHATML, LLAMA3, MISTRAL, MISTRAL_OLD], ids=["chatml", "llama3", "mistral", "old"]
)


def tokenizer_for(template: str, texts: Iterable[str] = (), specials: Any = None) -> Any:
    """A byte-level BPE tokenizer with merges, so that text has more than one tokenisation."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    bos, eos, more = specials or SPECIALS[template]
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=[bos, eos, *more],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    lines = ["the door is open and the room behind it is dark", "user system assistant go north"]
    inner.train_from_iterator([*lines, *texts] * 3, trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=inner, bos_token=bos, eos_token=eos, additional_special_tokens=[*more]
    )
    tokenizer.chat_template = template
    return tokenizer


REPLIES = ("open the door", "go", "North! {a: 1}\n\nok", "the <b>room</b>")
OBSERVATIONS = ("you are here", "the door is\nopen", "  dark  ", "R3L-REPLY and [/INS]x", "over")


@GOOD
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_the_growing_sequence_is_the_full_template_on_every_turn(
    template: str, system: str
) -> None:
    tokenizer = tokenizer_for(template)
    chat = ChatFormat(tokenizer)
    ids = list(chat.open(system, OBSERVATIONS[0]))
    first = OBSERVATIONS[0]
    if system and template == MISTRAL_OLD:
        first, system = f"{system}\n\n{first}", ""
    messages = [{"role": "system", "content": system}] if system else []
    messages += [{"role": "user", "content": first}]
    for reply, observation in zip(REPLIES, OBSERVATIONS[1:], strict=True):
        ids += chat.prompt_ids
        full = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        assert tokenizer.decode(ids) == full
        assert ids == tokenizer.encode(full, add_special_tokens=False)
        space = " " if template == MISTRAL else ""
        ids += tokenizer.encode(space + reply, add_special_tokens=False)
        ids += [*chat.close(ids), *chat.turn("user", observation)]
        messages += [
            {"role": "assistant", "content": reply},
            {"role": "user", "content": observation},
        ]


@GOOD
def test_guidance_follows_an_observation_and_the_reply_follows_guidance(template: str) -> None:
    tokenizer = tokenizer_for(template)
    chat = ChatFormat(tokenizer)
    text = tokenizer.decode([*chat.guidance("try the left one"), *chat.prompt_ids])
    expected = {
        CHATML: "<|im_start|>system\ntry the left one<|im_end|>\n<|im_start|>assistant\n",
        LLAMA3: "<|start_header_id|>system<|end_header_id|>\n\ntry the left one<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        MISTRAL: "[INST] try the left one [/INST]",
        MISTRAL_OLD: "[INST] try the left one [/INST]",
    }
    assert text == expected[template]


def test_a_template_that_changes_its_first_letter_with_the_turn_is_refused_with_that_place() -> (
    None
):
    tokenizer = tokenizer_for("{{ messages | length }}" + CHATML, specials=SPECIALS[CHATML])
    with pytest.raises(UserError, match=r"at turn 1 '3.*' instead of '1"):
        ChatFormat(tokenizer)


def test_a_template_that_forgets_earlier_reasoning_is_refused_or_kept_on_request() -> None:
    tokenizer = tokenizer_for(FORGETFUL)
    with pytest.raises(UserError, match=r"reasoning.*actor\.earlier_reasoning=keep"):
        ChatFormat(tokenizer)
    kept = ChatFormat(tokenizer, earlier_reasoning="keep")
    assert tokenizer.decode(kept.turn("user", "x")) == "\n<|im_start|>user\nx<|im_end|>\n"


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_known_families_keep_every_speaker_or_are_refused_with_advice(family: Family) -> None:
    tokenizer = tokenizer_for(family.template, specials=family.specials)
    if family.verdict:
        keep = family.verdict == "keep"
        with pytest.raises(UserError, match="removes the reasoning" if keep else family.verdict):
            ChatFormat(tokenizer)
        if not keep:
            with pytest.raises(UserError, match=r"chat_template\.jinja .*ChatML"):
                ChatFormat(tokenizer, earlier_reasoning="keep")
            return
    chat = ChatFormat(tokenizer, earlier_reasoning="keep")
    invitation, end = tokenizer.decode(chat.prompt_ids), tokenizer.decode([chat.end_id])
    ids = list(chat.open("Be brief.", "You are here."))
    for reply, seen in (("go north", "A door."), ("open it", "A room.")):
        ids += [*chat.prompt_ids, *tokenizer.encode(reply), chat.end_id]
        ids += chat.turn("user", seen)
    text = tokenizer.decode([*ids, *chat.guidance("Look up."), *chat.prompt_ids])
    words = ["Be brief.", "You are here.", "go north", "A door.", "open it", "A room.", "Look up."]
    assert sorted(words, key=text.index) == words
    assert text.endswith(invitation) and all(text.count(one) == 1 for one in words)
    assert all(f"{invitation}{reply}{end}" in text for reply in ("go north", "open it"))
    for given in ("Be brief.", "You are here.", "A door.", "A room.", "Look up."):
        before, _, after = text.partition(given)
        spoken = before.rstrip().endswith(invitation.partition("<think>")[0].strip())
        assert not (spoken and after.lstrip().startswith(end)), given
    joined = "Be brief.\n\nYou are here." in text
    assert joined == (family.system == "user")
    assert (chat.guide, family.name) == (family.guide, family.name)


def test_the_reasoning_that_an_invitation_opens_stays_in_the_growing_sequence() -> None:
    opened = next(one for one in FAMILIES if one.name == "opened thought")
    chat = ChatFormat(
        tokenizer_for(opened.template, specials=opened.specials), earlier_reasoning="keep"
    )
    decode = chat.tokenizer.decode
    reply = chat.tokenizer.encode("hm</think>go")
    ids = [*chat.open("", "where?"), *chat.prompt_ids, *reply, *chat.close(reply)]
    text = decode([*ids, *chat.turn("user", "there"), *chat.prompt_ids])
    turns = ("user\nwhere?", "assistant\n<think>\nhm</think>go", "user\nthere")
    whole = "".join(f"<|im_start|>{one}<|im_end|>\n" for one in turns)
    assert text == whole + "<|im_start|>assistant\n<think>\n"


def test_a_template_that_rewrites_earlier_turns_is_refused_with_the_place() -> None:
    with pytest.raises(UserError, match=r"changes earlier turns.*turn 1 "):
        ChatFormat(tokenizer_for(WANDERING), earlier_reasoning="keep")


def test_a_template_without_an_end_of_turn_token_is_refused() -> None:
    endless = CHATML.replace("<|im_end|>", "")
    with pytest.raises(UserError, match="no special token"):
        ChatFormat(CharTokenizer(endless))
    with pytest.raises(UserError, match="has no chat template"):
        ChatFormat(CharTokenizer(None))


class RandomPolicy:
    """Samples random tokens, special ones included."""

    context_length = 1 << 20

    def __init__(self, chat: ChatFormat, vocabulary: int) -> None:
        self.chat, self.vocabulary = chat, vocabulary
        self.rng = np.random.default_rng(0)
        self.sampled: list[tuple[int, ...]] = []

    async def sample(self, token_ids: Any, params: SampleParams) -> Sample:
        tokens = tuple(int(t) for t in self.rng.integers(0, self.vocabulary, 40))
        self.sampled.append(tokens)
        return Sample(tokens, (-1.0,) * len(tokens), 0, 0, "length")


@GOOD
def test_sampled_tokens_are_kept_however_their_text_would_be_encoded(template: str) -> None:
    tokenizer = tokenizer_for(template)
    policy = RandomPolicy(ChatFormat(tokenizer), len(tokenizer))
    env = Corridor("abcdefgh")

    async def played() -> rollout.Attempt:
        attempt = await rollout.start(Task("t", "corridor", 0), policy.chat, env)
        await rollout.play(attempt, policy, env, lambda k: SampleParams(40))
        return attempt

    attempt = asyncio.run(played())
    record = attempt.trajectory(0)
    spans = [tuple(record.token_ids[a:b].tolist()) for a, b in record.step_spans]
    assert spans == policy.sampled and len(spans) == 8
    differs = [t for t in spans if tokenizer.encode(tokenizer.decode(t)) != list(t)]
    assert differs, "some of them re-tokenise differently"


LOOPING = CHATML + "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
DOUBLING = (
    CHATML + "{% set ns = namespace(s='x') %}{% for i in range(60) %}"
    "{% set ns.s = ns.s + ns.s %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "seconds", "why"),
    [(LOOPING, 0.5, "took more than 0.5 s of CPU time"), (DOUBLING, 60.0, "Memory")],
    ids=["looping", "doubling"],
)
def test_a_template_that_does_not_end_is_refused(
    template: str, seconds: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("r3l.rollout.chat.PROBE_S", seconds)
    monkeypatch.setattr("r3l.rollout.chat.PROBE_BYTES", 1 << 28)
    with pytest.raises(UserError, match=f"{why}.*chat_template"):
        ChatFormat(tokenizer_for(template, specials=SPECIALS[CHATML]))


def test_a_template_that_waits_for_a_busy_machine_is_tried_to_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("r3l.rollout.chat.PROBE_S", 2.0)
    tokenizer, waits = tokenizer_for(CHATML), [2.5]
    apply = tokenizer.apply_chat_template

    def apply_late(*messages: Any, **more: Any) -> Any:
        time.sleep(waits.pop() if waits else 0.0)
        return apply(*messages, **more)

    tokenizer.apply_chat_template = apply_late
    assert ChatFormat(tokenizer).end == "<|im_end|>" and not waits
