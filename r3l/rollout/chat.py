"""Token-in/token-out chat: each turn is encoded once and appended; nothing is re-tokenised.

A conversation is one growing token sequence:

    open(system, user) · prompt · <response> · turn(user) · prompt · <response> · ...

`prompt` is what the template puts before a reply (ChatML: "<|im_start|>assistant\\n").
A response is kept exactly as sampled. What a template adds after a reply ("\\n" after
ChatML's <|im_end|>) belongs to the next turn.

A new ChatFormat encodes a test conversation in both ways, incrementally and with the template at
once. It refuses the template if the results differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, Literal

from jinja2.exceptions import TemplateError

from r3l.errors import UserError

EarlierReasoning = Literal["refuse", "keep"]
Message = dict[str, str]

_MARK = "R3L-REPLY"  # a reply in probe conversations
_PLAIN = ("go north", "take it", "stop")
_REASONED = tuple(f"<think>\nbecause {n}\n</think>\n\nstep {n}" for n in range(3))


class ChatFormat:
    """A tokenizer's chat template, cut into the pieces of a growing conversation.

    `tokenizer` is a Hugging Face tokenizer with a chat template and an end-of-turn token.
    `earlier_reasoning`: what to do if a template removes the reasoning (<think>…</think>) of
    earlier replies, which a growing sequence cannot do. "refuse" refuses the template. "keep" keeps
    the reasoning: the policy reads its earlier thoughts and is trained with them in its context.
    Raises UserError if the template cannot be cut into increments.
    """

    def __init__(self, tokenizer: Any, *, earlier_reasoning: EarlierReasoning = "refuse") -> None:
        self.tokenizer = tokenizer
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template, which "
                "r3l needs; choose an instruct model or set tokenizer.chat_template"
            )
        self.end_id, self._end = self._find_end()
        if difference := self._first_difference(_PLAIN):
            raise self._refused(f"changes earlier turns when a turn is added: {difference}")
        if earlier_reasoning == "refuse" and (difference := self._first_difference(_REASONED)):
            raise self._refused(
                f"removes the reasoning of earlier replies: {difference}; set "
                "actor.earlier_reasoning=keep (r3l-learner warmup: --earlier-reasoning keep) to "
                "leave it in the context"
            )

    @cached_property
    def prompt_ids(self) -> tuple[int, ...]:
        """The tokens that invite a reply."""
        return self._encode(self._prompt)

    def open(self, system: str, user: str) -> tuple[int, ...]:
        """Encodes a conversation's first two messages, without the invitation to reply.

        If the template has no system role, the system message is prepended to the user's message.
        """
        return self._encode(self._render(self._opening(system, user)))

    def turn(self, role: str, content: str) -> tuple[int, ...]:
        """Encodes one more message after a reply, beginning with the tokens that close the
        reply."""
        return self._encode(self._turn(role, content))

    def guidance(self, content: str) -> tuple[int, ...]:
        """Encodes a guidance message after another message. It is a system message, or a user
        message if the template allows no system message there."""
        return self._encode(self._turn(self._guide, content).removeprefix(self._reply_tail))

    def close(self, response: Sequence[int]) -> tuple[int, ...]:
        """Returns the tokens that end a reply that was cut off before its end-of-turn token."""
        return () if response and response[-1] == self.end_id else (self.end_id,)

    def text(self, response: Sequence[int]) -> str:
        """Decodes a reply to text without special tokens."""
        return str(self.tokenizer.decode(list(response), skip_special_tokens=True)).strip()

    @cached_property
    def _prompt(self) -> str:
        asked = [{"role": "user", "content": "u"}]
        return self._render(asked, prompt=True)[len(self._render(asked)) :]

    @cached_property
    def _reply_tail(self) -> str:
        """Returns what the template adds after a reply's end-of-turn token."""
        return self._around_reply([])[1].removeprefix(self._end)

    @cached_property
    def _has_system(self) -> bool:
        messages = [{"role": "system", "content": _MARK}, {"role": "user", "content": "u"}]
        try:
            return _MARK in self._render(messages)
        except UserError:
            return False

    @cached_property
    def _guide(self) -> str:
        """Returns the role that may speak between a user's message and a reply."""
        try:
            following = self._around_reply([{"role": "system", "content": "a note"}])[1]
        except UserError:
            return "user"
        return "system" if "a note" in following else "user"

    def _opening(self, system: str, user: str) -> list[Message]:
        if system and not self._has_system:
            system, user = "", f"{system}\n\n{user}"
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": user}]

    def _turn(self, role: str, content: str) -> str:
        return self._around_reply([{"role": role, "content": content}])[1].removeprefix(self._end)

    def _around_reply(self, following: list[Message]) -> tuple[str, str]:
        """Returns the text before and after a reply that is followed by the `following`
        messages."""
        asked = [{"role": "user", "content": "u"}, {"role": "assistant", "content": _MARK}]
        before, _, after = self._render([*asked, *following]).partition(_MARK)
        return before, after

    def _find_end(self) -> tuple[int, str]:
        """Finds the id and the text of the token that the template puts right after a reply."""
        after = self._around_reply([])[1]
        ids = self._encode(after)
        special = set(self.tokenizer.all_special_ids)
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        special |= {i for i, token in added.items() if token.special}
        if ids and ids[0] in special:
            end = str(self.tokenizer.convert_ids_to_tokens(ids[0]))
            if after.startswith(end):
                return ids[0], end
        raise self._refused("does not end a reply with a special token right after its text")

    def _first_difference(self, replies: Sequence[str]) -> str:
        """Finds where the increments of a test conversation differ from the template's own text or
        tokens; "" if they agree."""
        messages = self._opening("be brief", "what now?")
        text, ids = self._render(messages), list(self.open("be brief", "what now?"))
        asked = self._render([{"role": "user", "content": "u"}], prompt=True)
        lead = self._around_reply([])[0].removeprefix(asked)
        lead = lead if lead.isspace() else ""  # a space that the policy samples with its reply
        for turn, reply in enumerate(replies):
            text, ids = text + self._prompt, [*ids, *self.prompt_ids]
            whole = self._render(messages, prompt=True)
            if text != whole:
                return _difference(turn, text, whole)
            if ids != list(self._encode(whole)):
                return f"turn {turn} has other tokens when it is encoded by itself"
            answer = {"role": "user", "content": f"you did {turn}"}
            messages += [{"role": "assistant", "content": reply}, answer]
            response = lead + reply + self._end
            text += response + self._turn("user", answer["content"])
            ids += [*self._encode(response), *self.turn("user", answer["content"])]
        return ""

    def _refused(self, why: str) -> UserError:
        return UserError(
            f"the chat template of {self.tokenizer.name_or_path!r} {why}; r3l appends turns token "
            "by token: use a ChatML, Llama-3 or Mistral style template"
        )

    def _render(self, messages: list[Message], *, prompt: bool = False) -> str:
        try:
            return str(
                self.tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=prompt
                )
            )
        except TemplateError as error:
            roles = ", ".join(message["role"] for message in messages)
            raise self._refused(f"does not take messages of {roles} ({error})") from None

    def _encode(self, text: str) -> tuple[int, ...]:
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))


def _difference(turn: int, grown: str, whole: str) -> str:
    at = next((i for i, (a, b) in enumerate(zip(grown, whole, strict=False)) if a != b), 0)
    at = at or min(len(grown), len(whole))
    return f"at turn {turn} {whole[at : at + 30]!r} instead of {grown[at : at + 30]!r}"
