"""Encodes a chat turn by turn. Appends each turn's tokens, and never tokenises text twice. Tools
and agents' messages: r3l.rollout.agent_chat.

    open(system, user) · prompt · <response> · turn(user) · prompt · <response> · ...

`prompt` is what the template puts before a reply (ChatML: "<|im_start|>assistant\\n"). What the
template adds after a reply ("\\n" after ChatML's <|im_end|>) belongs to the next turn.

Texts of special tokens inside messages stay text (r3l.models.special_text).

A new ChatFormat encodes a test conversation in two ways, piece by piece and as a whole. It refuses
the template if the results differ, or if a user's message looks like a reply.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from r3l.errors import UserError
from r3l.models.special_text import SpecialText
from r3l.rollout.limits import limited

EarlierReasoning = Literal["refuse", "keep"]
Message = dict[str, str]

PROBE_S, PROBE_WALL_S, PROBE_BYTES = 10.0, 300.0, 2 << 30
"""Limits of CPU time, wall time and memory for trying out a template, which is code."""
_MARK = "R3L-REPLY"  # a reply in probe conversations
_NOTE = "R3L-NOTE"  # another message in them
_ASKED: list[Message] = [{"role": "user", "content": "u"}]
_PLAIN = ("go north", "take it", "stop")
_REASONED = tuple(f"<think>\nbecause {n}\n</think>\n\nstep {n}" for n in range(3))


class ChatFormat:
    """Encodes a growing conversation piece by piece, as a tokenizer's chat template writes it.

    `earlier_reasoning`: what to do with a template that removes reasoning, such as
    <think>…</think>, from earlier replies. "refuse" raises UserError. "keep" leaves the reasoning
    in the context. `arguments`: further arguments of the template, by name. Raises UserError if the
    template cannot write a conversation piece by piece.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        earlier_reasoning: EarlierReasoning = "refuse",
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.tokenizer, self.earlier_reasoning = tokenizer, earlier_reasoning
        self.arguments = arguments
        self.special = SpecialText(tokenizer)
        if not getattr(tokenizer, "chat_template", None):
            raise UserError(
                f"the tokenizer of {tokenizer.name_or_path!r} has no chat template, which "
                "r3l needs; choose an instruct model or set tokenizer.chat_template"
            )
        try:
            with limited(PROBE_WALL_S, PROBE_BYTES, cpu_s=PROBE_S):
                self.end_id, self.end = self._find_end()
                self._probe(earlier_reasoning)
                self.special.add_from(self._frame())
                for name in ("_prompt", "_earlier_prompt", "_reply_tail"):
                    self.__dict__.pop(name, None)  # an argument may be in them: mark it again
        except (TimeoutError, MemoryError) as error:
            raise self._refused(f"cannot be tried ({error!r})") from None

    def _probe(self, earlier_reasoning: EarlierReasoning) -> None:
        """Raises UserError if a template changes earlier turns or writes user turns as replies."""
        if self._is_reply(self.render([{"role": "user", "content": _NOTE}])):
            raise self._refused("writes a user's message in the same form as a reply")
        if difference := self._first_difference(_PLAIN):
            raise self._refused(f"changes earlier turns when a turn is added: {difference}")
        forgets = ""
        if earlier_reasoning == "refuse":
            opened = self._prompt.removeprefix(self._earlier_prompt)
            unlike = f"only the last one has {opened!r}" if self._opens_reasoning else ""
            forgets = unlike or self._first_difference(_REASONED)
        if forgets:
            raise self._error(
                f"removes the reasoning of earlier replies: {forgets}; to leave that reasoning in "
                "the context, set actor.earlier_reasoning=keep (r3l-learner warmup: "
                "--earlier-reasoning keep)"
            )

    def _frame(self) -> str:
        """Returns the template's own text of a short conversation."""
        opening = self.opening("s", "u")
        return self.render(opening) + "".join(self._around_reply([*_ASKED])) + self._prompt

    @cached_property
    def prompt_ids(self) -> tuple[int, ...]:
        """The tokens of `prompt`, the template's text before a reply."""
        return self.encode(self._prompt)

    def open(self, system: str, user: str) -> tuple[int, ...]:
        """Encodes a conversation's first two messages. Merges them if there is no system role."""
        return self.encode(self.render(self.opening(system, user)))

    def turn(self, role: str, content: str) -> tuple[int, ...]:
        """Encodes the message after a reply, and the template's text between reply and message."""
        return self.encode(self._turn(role, content))

    def guidance(self, content: str) -> tuple[int, ...]:
        """Encodes a guidance message after a user's message, with the role `guide`."""
        message = {"role": self.guide, "content": content}
        return self.encode(
            self._after_user(message)
            or self._turn(self.guide, content).removeprefix(self._reply_tail)
        )

    def close(self, response: Sequence[int]) -> tuple[int, ...]:
        """Returns the end-of-turn token if a reply was cut off before it, otherwise no token."""
        return () if response and response[-1] == self.end_id else (self.end_id,)

    def text(self, response: Sequence[int]) -> str:
        """Decodes a reply to text without special tokens."""
        return str(self.tokenizer.decode(list(response), skip_special_tokens=True)).strip()

    @cached_property
    def _prompt(self) -> str:
        return self.render(_ASKED, prompt=True).removeprefix(self.render(_ASKED))

    @cached_property
    def _earlier_prompt(self) -> str:
        """Returns what the template writes before a reply that is not the last message."""
        return self._around_reply(_ASKED)[0].removeprefix(self.render(_ASKED))

    @property
    def _opens_reasoning(self) -> bool:
        """Whether the template has text like <think> before a new reply but not before old ones."""
        return len(self._prompt) > len(self._earlier_prompt) > 0 and self._prompt.startswith(
            self._earlier_prompt
        )

    @cached_property
    def _closing(self) -> str:
        """Returns what the template writes after a conversation (Phi-3: <|endoftext|>), or ""."""
        asked, invited = (self._write(_ASKED, prompt) for prompt in (False, True))
        end = str(getattr(self.tokenizer, "eos_token", None) or "")
        return end if asked.endswith(end) and not invited.startswith(asked) else ""

    @cached_property
    def _reply_tail(self) -> str:
        """Returns the template's text after a reply's end-of-turn token."""
        return self._around_reply([])[1].removeprefix(self.end)

    @cached_property
    def _has_system(self) -> bool:
        """Whether a chat can begin with a system message that is not rendered like a reply."""
        opening = [{"role": "system", "content": _NOTE}, *_ASKED]
        try:
            text = self.render(opening)
            later = self.render([*opening, {"role": "assistant", "content": _MARK}, *_ASKED])
        except UserError:
            return False
        return _NOTE in text and later.startswith(text) and not self._is_reply(text)

    @cached_property
    def guide(self) -> str:
        """Returns the role of guidance messages. The role is "system" if the template allows system
        messages in mid-conversation, otherwise "user"."""
        note = {"role": "system", "content": _NOTE}
        try:
            texts = (self._after_user(note), self._around_reply([note])[1])
        except UserError:
            return "user"
        fits = all(_NOTE in text and not self._is_reply(text) for text in texts)
        return "system" if fits else "user"

    def _after_user(self, message: Message) -> str:
        """Returns what `message` adds after a user's message; "" if `message` cannot follow one."""
        asked = self.render(_ASKED)
        try:
            text = self.render([*_ASKED, message])
        except UserError:
            return ""
        return text.removeprefix(asked) if text.startswith(asked) else ""

    def _is_reply(self, text: str) -> bool:
        """Whether the message _NOTE looks like a reply in the rendered `text`."""
        before, _, after = text.partition(_NOTE)
        lead = self._earlier_prompt.strip()
        return before.rstrip().endswith(lead) and after.lstrip().startswith(self.end)

    def opening(self, system: str, user: str) -> list[Message]:
        """Returns a conversation's first messages. Merges them if there is no system role."""
        if system and not self._has_system:
            system, user = "", f"{system}\n\n{user}"
        messages = [{"role": "system", "content": system}] if system else []
        return [*messages, {"role": "user", "content": user}]

    def _turn(self, role: str, content: str) -> str:
        return self._around_reply([{"role": role, "content": content}])[1].removeprefix(self.end)

    def _around_reply(self, following: list[Message]) -> tuple[str, str]:
        """Renders a reply, then `following`. Returns the text before and after the reply."""
        asked = [*_ASKED, {"role": "assistant", "content": _MARK}]
        before, _, after = self.render([*asked, *following]).partition(_MARK)
        return before, after

    def _find_end(self) -> tuple[int, str]:
        """Finds the id and the text of the token that the template puts right after a reply."""
        after = self._around_reply([])[1]
        ids = self.encode(after)
        special = set(self.tokenizer.all_special_ids)
        added = getattr(self.tokenizer, "added_tokens_decoder", {})
        special |= {i for i, token in added.items() if token.special}
        if ids and ids[0] in special:
            end = str(self.tokenizer.convert_ids_to_tokens(ids[0]))
            if after.startswith(end):
                return ids[0], end
        raise self._refused("puts no special token right after the text of a reply")

    def _first_difference(self, replies: Sequence[str]) -> str:
        """Encodes a test conversation piece by piece and as a whole. Returns the first difference
        in text or tokens, or ""."""
        messages = self.opening("be brief", "what now?")
        text, ids = self.render(messages), list(self.open("be brief", "what now?"))
        begun, lead = self._prompt, self._earlier_prompt.removeprefix(self._prompt)
        lead = lead if lead.isspace() else ""  # a space that the policy samples with its reply
        if self._opens_reasoning:  # the growing sequence keeps what the template leaves out
            begun = self._earlier_prompt
        for turn, reply in enumerate(replies):
            whole = self.render(messages, prompt=True)
            if text + self._prompt != whole:
                return _difference(turn, text + self._prompt, whole)
            if [*ids, *self.prompt_ids] != list(self.encode(whole)):
                return f"turn {turn} has other tokens when it is encoded by itself"
            text, ids = text + begun, [*ids, *self.encode(begun)]
            answer = {"role": "user", "content": f"you did {turn}"}
            messages += [{"role": "assistant", "content": reply}, answer]
            response = lead + reply + self.end
            text += response + self._turn("user", answer["content"])
            ids += [*self.encode(response), *self.turn("user", answer["content"])]
        return ""

    def _refused(self, why: str) -> UserError:
        return self._error(
            f"{why}; r3l appends turns token by token: give the model folder a "
            "chat_template.jinja that only appends text, such as ChatML's"
        )

    def _error(self, why: str) -> UserError:
        return UserError(f"the chat template of {self.tokenizer.name_or_path!r} {why}")

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] = (),
        *,
        prompt: bool = False,
    ) -> str:
        """Renders messages with the template. Raises UserError if the template refuses them."""
        text = self._write(messages, prompt, tools)
        return text if prompt else text.removesuffix(self._closing)

    def _write(
        self,
        messages: Sequence[Mapping[str, Any]],
        prompt: bool,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        marked = self.special.marked
        more = {name: marked(value) for name, value in self.arguments.items()}
        try:
            more |= {"tools": marked(list(tools))} if tools else {}
            return str(
                self.tokenizer.apply_chat_template(
                    marked(list(messages)), tokenize=False, add_generation_prompt=prompt, **more
                )
            )
        except RecursionError:
            raise UserError(
                "a tool or the arguments of a tool call are nested too deeply for the chat "
                "template; nest them less"
            ) from None
        except Exception as error:  # a template is code: it may raise anything
            roles = ", ".join(message["role"] for message in messages)
            why = str(error) or type(error).__name__
            raise self._refused(f"refuses messages with the roles {roles} ({why})") from None

    def encode(self, text: str) -> tuple[int, ...]:
        """Encodes a rendered text, which holds the template's special tokens."""
        return tuple(self.special.encode(text))


def _difference(turn: int, grown: str, whole: str) -> str:
    shorter = min(len(grown), len(whole))
    at = next((i for i in range(shorter) if grown[i] != whole[i]), shorter)
    return f"at turn {turn} {whole[at : at + 30]!r} instead of {grown[at : at + 30]!r}"
