"""Prompts: Markdown files in prompts/. An environment may override them (`EnvSpec.prompts`).

Placeholders of the templates, in braces:

    reflect_user, critique_user  log (the environment's system prompt and the steps), attempt
                                 (the steps alone), reward, last_step
    guidance, advice             report (the reflection as JSON), and each field of a reflection
    critique_guidance            critique
    in_context                   attempt

A retry is shown `guidance` or, with `algorithm.guidance_text=advice`, the shorter `advice`.

Some environments replace some templates: the built-in worlds (envs/builtin/matching.py,
envs/builtin/grid_world.py), ScienceWorld with its option `brief`
(envs/adapters/scienceworld/brief_text.py), ALFWorld and WebShop.
`r3l-launch --env NAME --show-prompts` prints what an environment uses.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from r3l.records import Trajectory
from r3l.rollout.reflection import Reflection

FOLDER = Path(__file__).parent / "prompts"
Question = Literal["reflect", "critique"]
GuidanceText = Literal["report", "advice"]
"""What a retry is shown of a reflection: all of it, or the advice alone."""


class Prompts:
    """The prompt texts of one environment. `overrides`: replacements, keyed by file stem, such as
    guidance. Raises ValueError for an unknown stem."""

    def __init__(self, overrides: Mapping[str, str] | None = None) -> None:
        self.texts = {p.stem: p.read_text(encoding="utf-8").strip() for p in FOLDER.glob("*.md")}
        for name, text in (overrides or {}).items():
            if name not in self.texts:
                raise ValueError(f"no prompt {name!r}; there are {', '.join(sorted(self.texts))}")
            self.texts[name] = text.strip()

    def question(self, kind: Question, attempt: Trajectory) -> tuple[str, str]:
        """Returns the (system, user) messages that ask for a reflection on an attempt, or for a
        free-text critique."""
        user = _fill(
            self.texts[f"{kind}_user"],
            log=attempt_log(attempt),
            attempt=attempt_steps(attempt),
            reward=f"{attempt.reward:g}",
            last_step=str(attempt.num_steps - 1),
        )
        return self.texts[f"{kind}_system"], user

    def guidance(self, reflection: Reflection, text: GuidanceText = "report") -> str:
        """Returns the text of a reflection that the policy reads while it retries."""
        fields = asdict(reflection)
        report = json.dumps(fields, ensure_ascii=False)
        texts = {name: "" if value is None else str(value) for name, value in fields.items()}
        template = self.texts["advice" if text == "advice" else "guidance"]
        return _fill(template, report=report, **texts)

    def critique_guidance(self, critique: str) -> str:
        """Returns the advice for a retry, made from a free-text critique."""
        return _fill(self.texts["critique_guidance"], critique=critique)

    def in_context(self, attempt: Trajectory) -> str:
        """Returns a text that shows a stored failure and asks to reflect on it first. Leaves out
        the environment's closing remark, which may tell the answer."""
        return _fill(self.texts["in_context"], attempt=attempt_steps(attempt, remark=False))


def attempt_log(attempt: Trajectory) -> str:
    """Writes an attempt as the policy saw it: the environment's system prompt, then the steps."""
    instructions = f"instructions: {attempt.system}\n" if attempt.system else ""
    return instructions + attempt_steps(attempt)


def attempt_steps(attempt: Trajectory, *, remark: bool = True) -> str:
    """Writes an attempt's steps, numbered from 0. With `remark`, adds the environment's closing
    remark, if there is one."""
    lines = []
    for step, action in enumerate(attempt.actions):
        lines.append(f"step {step} sees: {attempt.observations[step]}")
        lines.append(f"step {step} does: {action}")
    lines.append(f"end sees: {attempt.observations[-1]}")
    if remark and attempt.feedback not in ("", attempt.observations[-1]):
        lines.append(attempt.feedback)
    return "\n".join(lines)


def _fill(template: str, **values: str) -> str:
    """Replaces each {name} that has a value; braces in the values stay as they are."""
    return re.sub(r"\{(\w+)\}", lambda found: values.get(found[1], found[0]), template)
