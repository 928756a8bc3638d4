"""A row of things that need one answer each: the common part of the workshop and the keys.

    note (this attempt's exceptions) ─► thing 0 ─► answer ─► remark, thing 1 ─► answer ─► …

A rule of the world says which answer a thing needs: fixed, hidden, learned from reward. An
exception is written in the note and holds for one attempt. The reward is 1.0 at the end if every
answer was right, else 0.0; the remark on a wrong answer names the right one.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from typing import Any, Literal

from envs.base import Skill
from r3l.errors import UserError
from r3l.rollout.interfaces import EnvSpec

Mark = Literal["right", "wrong", "wasted"]
Setting = tuple[str, object]
"""A setting's name, as the user knows it, and the value given."""

PROMPTS = {
    "reflect_system": "Review this attempt and answer with one JSON object: trajectory_summary, "
    "root_cause_analysis, trajectory_outcome, improvement_suggestion, retry_from_step.",
    "reflect_user": "{attempt}\nreward {reward}.",
    "guidance": "advice: {improvement_suggestion}.",
}


@dataclass(frozen=True)
class Words:
    """The texts of a world. `things` and `answers` are names between spaces; `wrong` is formatted
    with thing and need.

    No line begins with a thing or an answer: a name always follows a space, so a tokenizer with one
    token per word has one way to write it, which is easy to copy.
    """

    things: str
    answers: str
    place: str
    verb: str
    waste: str
    right: str
    wrong: str
    wasted: str
    marks: dict[Mark, str]
    """One word for each outcome of a step, for reflections."""


@dataclass
class _State:
    row: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    note: list[str] = field(default_factory=list)
    place: int = 0
    marks: list[Mark] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    ended: bool = True


class Matching:
    """A world of matching; a subclass gives the texts, the settings and the effect of a wrong
    answer.

    `length`: things in the row; `things`, `answers`: how many the world has; `exceptions`:
    things of the row that need another answer than the rule says; `steps`: limit of steps
    (default: two more than things in the row).
    """

    words: Words
    wrong_ends: bool
    in_process = True

    def __init__(
        self,
        name: str,
        system_prompt: str,
        *,
        length: Setting,
        things: Setting,
        answers: Setting,
        exceptions: Setting,
        steps: Setting,
    ) -> None:
        named, answering = self.words.things.split(), self.words.answers.split()
        self.things = named[: _checked(things, 1, len(named))]
        self.answers = answering[: _checked(answers, 2, len(answering))]
        self.length = _checked(length, 1, len(self.things))
        self.exceptions = _checked(exceptions, 0, self.length)
        self.spec = EnvSpec(
            name=name,
            system_prompt=system_prompt.format(answers=", ".join(self.answers)),
            max_steps=_checked(steps, self.length, 1000, default=self.length + 2),
            max_response_tokens=8,
            feedback="causal",
            data_license="Apache-2.0",
            prompts=PROMPTS,
        )
        # any fixed table works; this one spreads the answers evenly
        count = len(self.answers)
        self.rule = {
            thing: self.answers[(5 * i + i // count) % count] for i, thing in enumerate(self.things)
        }
        self.state = _State()

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        """Start the row of `seed`; returns (note and first thing, {})."""
        rng = random.Random(seed)
        row = rng.sample(self.things, self.length)
        changed = {
            thing: rng.choice([a for a in self.answers if a != self.rule[thing]])
            for thing in rng.sample(row, self.exceptions)
        }
        self.state = _State(
            row=row,
            needs=[changed.get(thing, self.rule[thing]) for thing in row],
            note=[f"{thing} needs {answer}" for thing, answer in changed.items()],
            ended=False,
        )
        note = f"note: {', '.join(self.state.note)}. " if changed else ""
        return note + self._view(), {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Answer the current thing; see `r3l.rollout.interfaces.Environment.step`."""
        state = self.state
        if state.ended:
            return "it is over.", 0.0, True, False, {}
        mark, remark = self._judge(action)
        state.places.append(state.place)
        state.marks.append(mark)
        state.place += mark != "wasted"
        terminated = state.place == self.length or (mark == "wrong" and self.wrong_ends)
        truncated = not terminated and len(state.marks) >= self.spec.max_steps
        state.ended = terminated or truncated
        reward = float(self._succeeded())
        then = "it is over." if state.ended else self._view()
        return f"{remark} {then}", reward, terminated, truncated, {"mark": mark}

    def close(self) -> None:
        """Nothing is held open."""

    def snapshot(self) -> bytes:
        """The state of the attempt as JSON."""
        return json.dumps(vars(self.state)).encode()

    def restore(self, state: bytes) -> None:
        """Return to a snapshot."""
        self.state = _State(**json.loads(state))

    def feedback(self) -> str:
        """The number of right answers."""
        return f"{self.state.marks.count('right')} of {self.length} right."

    def demonstration(self) -> list[str]:
        """The answers that the rest of the row needs."""
        return [f"{self.words.verb} {need}" for need in self.state.needs[self.state.place :]]

    def demonstrate(self, skill: Skill, rng: random.Random, advice: str = "") -> str:
        """The next action of a demonstrator (envs.base.Demonstrating).

        The first `skill.withheld` things are those whose rules it does not know.
        """
        state = self.state
        thing = state.row[state.place]
        told = dict(re.findall(r"(\w+) needs (\w+)", f"{', '.join(state.note)}, {advice}"))
        draw = rng.random()
        if self.words.waste not in advice and draw < skill.waste:
            return self.words.waste
        if draw > 1 - skill.mistakes:
            answer = rng.choice(self.answers)
        elif thing in told:
            answer = told[thing]
        elif thing in self.things[: skill.withheld]:
            answer = rng.choice(self.answers)
        else:
            answer = self.rule[thing]
        return f"{self.words.verb} {answer}"

    def reflection(self) -> dict[str, Any]:
        """A teacher's reflection: retry from the first wrong step or, if there is none, from the
        first wasted one."""
        state, words = self.state, self.words
        wrong = [k for k, mark in enumerate(state.marks) if mark == "wrong"]
        wasted = [k for k, mark in enumerate(state.marks) if mark == "wasted"]
        advice = [f"{self._thing_at(k)[0]} needs {self._thing_at(k)[1]}" for k in wrong]
        advice += [f"not to {words.waste}"] if wasted else []
        marks = [f"{k} {words.marks[mark]}" for k, mark in enumerate(state.marks)]
        succeeded = self._succeeded()
        bad = wrong if wrong else wasted
        fault = ""
        if bad:
            fault = f"step {bad[0]} {words.marks[state.marks[bad[0]]]}"
        outcome = "failure" if not succeeded else "success_but_inefficient" if bad else "success"
        return {
            "trajectory_summary": "step " + ", ".join(marks),
            "root_cause_analysis": fault or None,
            "trajectory_outcome": outcome,
            "improvement_suggestion": f"remember {', '.join(advice)}" if advice else None,
            "retry_from_step": bad[0] if bad else None,
        }

    def vocabulary(self) -> list[str]:
        """Every word of the world, under any settings."""
        w = self.words
        spec = [self.spec.system_prompt, *self.spec.prompts.values()]
        said = ["remember", w.place, w.verb, w.waste, w.right, w.wrong, w.wasted, *w.marks.values()]
        return [w.things, w.answers, *said, *spec, self._unknown("")]

    def practice(self) -> list[dict[str, Any]]:
        """Options under which up to all things of a row are exceptions, so that the note must be
        read."""
        counts = (self.exceptions, self.exceptions, 2, self.length - 1, self.length)
        return [{"exceptions": min(count, self.length)} for count in counts]

    def _judge(self, action: str) -> tuple[Mark, str]:
        words, state = self.words, self.state
        thing, need = state.row[state.place], state.needs[state.place]
        match action.lower().rstrip(" .").split():
            case [verb, answer] if verb == words.verb and answer in self.answers:
                if answer == need:
                    return "right", words.right
                return "wrong", words.wrong.format(thing=thing, need=need)
            case [waste] if waste == words.waste:
                return "wasted", words.wasted
        return "wasted", self._unknown(action)

    def _unknown(self, action: str) -> str:
        said = " ".join(action.split())[:40]
        return (
            f'"{said}" is not understood, say {self.words.verb} and a word, or {self.words.waste}.'
        )

    def _view(self) -> str:
        return f"{self.words.place} {self.state.place} has {self.state.row[self.state.place]}"

    def _thing_at(self, step: int) -> tuple[str, str]:
        """(thing, the answer it needs) at a step of the attempt."""
        place = self.state.places[step]
        return self.state.row[place], self.state.needs[place]

    def _succeeded(self) -> bool:
        return self.state.place == self.length and "wrong" not in self.state.marks


def _checked(setting: Setting, low: int, high: int, default: int | None = None) -> int:
    """The setting's value, or `default` for None. Raises UserError outside low..high."""
    name, value = setting
    if value is None and default is not None:
        return default
    if type(value) is not int or not low <= value <= high:
        raise UserError(f"env option {name} is {value!r}; it must be an integer in {low}..{high}")
    return value
