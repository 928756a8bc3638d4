"""A made-up world, and a policy that plays it by a script: for rehearsals of algorithms.

The world has STEPS doors. An attempt earns an equal share of 1 at each door that the policy opens.
The tokens are characters.
"""

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from r3l.records import Task
from r3l.rollout.chat import ChatFormat
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer
from r3l.rollout.policy_interface import Sample, SampleParams

Course = Literal["mixed", "failed", "successful"]
"""How the attempts go: some doors are opened, none, or all."""

STEPS = 3
SPECIALS = ("<start>", "<end>")
END = SPECIALS.index("<end>")
QUESTION_TOKENS = 2000
"""The token budget of answers, by which the policy tells a question from an attempt."""

TASK = Task("rehearsal/0", "rehearsal", seed=0)

REFLECTION = {
    "trajectory_summary": "some doors stayed shut",
    "root_cause_analysis": "waited",
    "trajectory_outcome": "failure",
    "improvement_suggestion": "open the door",
    "retry_from_step": 1,
}


class Characters:
    """A tokenizer with one token for each character, and the chat template of ChatML."""

    chat_template = "made up"
    name_or_path = "rehearsal"
    all_special_ids = tuple(range(len(SPECIALS)))

    def apply_chat_template(
        self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool, **more: Any
    ) -> str:
        """Writes a conversation."""
        texts = [f"<start>{each['role']}\n{each['content']}<end>\n" for each in messages]
        return "".join(texts) + ("<start>assistant\n" if add_generation_prompt else "")

    def encode(self, text: str, **more: Any) -> list[int]:
        """Encodes text with special tokens."""
        ids: list[int] = []
        while text:
            special = next((i for i, name in enumerate(SPECIALS) if text.startswith(name)), None)
            ids.append(ord(text[0]) + len(SPECIALS) if special is None else special)
            text = text[1 if special is None else len(SPECIALS[special]) :]
        return ids

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """Decodes tokens."""
        specials = [""] * len(SPECIALS) if skip_special_tokens else SPECIALS
        first = len(SPECIALS)
        return "".join(specials[i] if i < first else chr(i - first) for i in ids)

    def convert_ids_to_tokens(self, token: int) -> str:
        """Returns the name of a special token."""
        return SPECIALS[token]


@dataclass
class MadeUpPolicy:
    """Opens doors as its course says. Answers questions with a value that fits their schema, or
    with a reflection on a failure."""

    course: Course
    chat: ChatFormat = field(default_factory=lambda: ChatFormat(Characters()))
    answered: int = 0

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Returns a response that ends by itself."""
        text = self._answer(params) if params.max_tokens == QUESTION_TOKENS else self._act(params)
        ids = (*self.chat.tokenizer.encode(text), END)
        return Sample(ids, (-0.5,) * len(ids), 1, 1, "stop")

    def _act(self, params: SampleParams) -> str:
        by_chance = zlib.crc32(repr(params.seed).encode()) % 2 == 0
        opens = self.course == "successful" or (self.course == "mixed" and by_chance)
        return "open" if opens else "wait"

    def _answer(self, params: SampleParams) -> str:
        self.answered += 1
        if params.json_schema is None:
            return json.dumps(REFLECTION)
        return json.dumps(fitting(params.json_schema, self.answered))


class MadeUpWorld:
    """The world of a rehearsal."""

    def __init__(self) -> None:
        self.spec = EnvSpec("rehearsal", "Say open, or wait.", STEPS, max_response_tokens=20)
        self.step_count = 0

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Begins an attempt."""
        self.step_count = 0
        return "door 0", {}

    def step(self, action: str) -> StepAnswer:
        """Takes a response."""
        self.step_count += 1
        reward = 1.0 / STEPS if action == "open" else 0.0
        return f"door {self.step_count}", reward, self.step_count == STEPS, False, {}

    def close(self) -> None:
        """Does nothing."""


def fitting(schema: Mapping[str, Any], turn: int) -> Any:
    """Returns a value that fits a JSON schema without patterns and references. `turn` chooses among
    alternatives."""
    for key in ("oneOf", "anyOf", "enum"):
        if options := schema.get(key):
            chosen = options[turn % len(options)]
            return chosen if key == "enum" else fitting(chosen, turn)
    if "const" in schema:
        return schema["const"]
    match schema.get("type"):
        case "object":
            return {name: fitting(own, turn) for name, own in schema.get("properties", {}).items()}
        case "array":
            item = fitting(schema.get("items", {}), turn)
            return [item] * max(int(schema.get("minItems", 1)), 1)
        case "integer" | "number":
            return schema.get("minimum", 0)
        case "boolean":
            return turn % 2 == 0
        case "null":
            return None
    return "text".ljust(int(schema.get("minLength", 0)), ".")
