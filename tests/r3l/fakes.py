"""Hand-made stand-ins for unit tests: a tokenizer, a policy that follows a script, a world."""

import asyncio
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_interface import EnvSpec
from r3l.rollout.policy_interface import Sample, SampleParams

END = 1
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@cache
def compiled(template: str) -> Any:
    import jinja2

    return jinja2.Environment().from_string(template)


class CharTokenizer:
    """One token a character, specials apart; renders a Jinja chat template."""

    specials = ("<|im_start|>", "<|im_end|>")
    all_special_ids = (0, END)
    name_or_path = "characters"

    def __init__(self, template: str | None = CHATML) -> None:
        self.chat_template = template

    def apply_chat_template(
        self,
        messages: list[dict[str, str]],
        *,
        tokenize: bool,
        add_generation_prompt: bool,
        tools: Sequence[Any] = (),
        **more: Any,
    ) -> str:
        assert not tokenize and self.chat_template
        return compiled(self.chat_template).render(
            messages=messages, add_generation_prompt=add_generation_prompt, tools=tools, **more
        )

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = []
        while text:
            special = next((i for i, s in enumerate(self.specials) if text.startswith(s)), None)
            if special is None:
                ids.append(ord(text[0]) + 10)
                text = text[1:]
            else:
                ids.append(special)
                text = text[len(self.specials[special]) :]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        parts = []
        for i in ids:
            if i >= 10:
                parts.append(chr(i - 10))
            elif not skip_special_tokens:
                parts.append(self.specials[i])
        return "".join(parts)

    def convert_ids_to_tokens(self, i: int) -> str:
        return self.specials[i]


class ScriptedPolicy:
    """Answers by `reply(prompt_text)`; remembers every prompt and the parameters asked with."""

    def __init__(self, reply: Callable[[str], str], *, context_length: int = 100_000) -> None:
        self.chat = ChatFormat(CharTokenizer())
        self.context_length = context_length
        self.reply = reply
        self.prompts: list[str] = []
        self.asked: list[SampleParams] = []
        self.version = 0

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        await asyncio.sleep(0)
        prompt = self.chat.tokenizer.decode(token_ids)
        self.prompts.append(prompt)
        self.asked.append(params)
        if len(token_ids) >= self.context_length:
            return Sample((), (), self.version, self.version, "overflow")
        tokens = [*self.chat.tokenizer.encode(self.reply(prompt)), END]
        reason = "stop" if len(tokens) <= params.max_tokens else "length"
        tokens = tokens[: params.max_tokens]
        logprobs = tuple(-0.5 for _ in tokens)
        return Sample(tuple(tokens), logprobs, self.version, self.version, reason)


class Corridor:
    """A world of `length` doors; at door k the right answer is `answers[k]`; every attempt goes
    on to the end and succeeds when all answers were right."""

    def __init__(self, answers: str = "abc", *, snapshots: bool = False) -> None:
        self.answers = answers
        self.closed = 0
        self.steps_taken = 0
        self.spec = EnvSpec("corridor", "Answer.", max_steps=10, max_response_tokens=50)
        if snapshots:
            self.snapshot = self._snapshot
            self.restore = self._restore

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.given = ""
        return f"door 0 of seed {seed}", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.steps_taken += 1
        self.given += action[:1]
        done = len(self.given) == len(self.answers)
        reward = float(done and self.given == self.answers)
        return f"door {len(self.given)} after {action}", reward, done, False, {}

    def feedback(self) -> str:
        return f"gave {self.given}"

    def close(self) -> None:
        self.closed += 1

    def _snapshot(self) -> bytes:
        return self.given.encode()

    def _restore(self, state: bytes) -> None:
        self.given = state.decode()
