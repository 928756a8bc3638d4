"""The base of the worlds `workshop` and `keys`: a row of things. Each thing needs an answer.

    note (this task's exceptions) ─► thing 0 ─► answer ─► remark, thing 1 ─► answer ─► …

The world's rule says which answer each thing needs. The rule is fixed and hidden. The note lists
the task's exceptions to the rule. At the end, the reward is 1.0 if every answer that counts was
right, else 0.0. `Dials` decides how much a remark reveals.
"""

import json
import random
import re
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from envs.base import Skill
from envs.requirements import choice, integer
from r3l.rollout.env_interface import EnvSpec, ResetAnswer, StepAnswer

Mark = Literal["right", "wrong", "wasted"]
Summary = Literal["full", "brief"]
Hint = Literal["what", "where", "none"]
MOST_WORDS = 64
Setting = tuple[str, int]
"""A setting's name, as the user knows it, and its value."""
PROMPTS = {
    "reflect_system": "Review this attempt and answer with one JSON object: trajectory_summary, "
    "root_cause_analysis, trajectory_outcome, improvement_suggestion, retry_from_step.",
    "reflect_user": "{log}\nreward {reward}.",
    "guidance": "advice: {report}",
    "advice": "advice: {improvement_suggestion}.",
}


@dataclass(frozen=True)
class Dials:
    """Sets how long answers are and what remarks reveal. Raises UserError if invalid.

    `words`: number of words of thought before each answer, 0..64. `summary`: whether a reflection
    lists all steps (full) or leaves out steps that may be right (brief). `hint`: what the remark on
    a wrong answer reveals: the needed answer (what), only that it is wrong (where), nothing (none).
    """

    words: int = 0
    summary: Summary = "full"
    hint: Hint = "what"

    def __post_init__(self) -> None:
        integer("words", self.words, 0, MOST_WORDS)
        choice("summary", self.summary, get_args(Summary))
        choice("hint", self.hint, get_args(Hint))


@dataclass(frozen=True)
class Words:
    """The texts of a world. `things`, `answers`: names separated by spaces. `wrong`: contains
    {thing} and {need}.

    No line begins with a name, so every name follows a space. A tokenizer of words then always
    gives a name the same token.
    """

    things: str
    answers: str
    place: str
    verb: str
    waste: str
    right: str
    wrong: str  # the remark on a wrong answer if hint=what
    wasted: str
    marks: dict[Mark, str]
    """One word for each outcome of a step, for reflections."""
    thought: str = ""
    wrong_where: str = ""  # the same if hint=where
    done: str = ""  # the only remark if hint=none


@dataclass
class _State:
    row: list[str] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    note: list[str] = field(default_factory=list)
    place: int = 0
    marks: list[Mark] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    given: list[str] = field(default_factory=list)
    counted: list[int] = field(default_factory=list)
    ended: bool = True


class Matching:
    """A world. A subclass sets its texts and settings, and whether a wrong answer ends an attempt.

    `length`: number of things in the row. `things`, `answers`: how many of each the world has.
    `exceptions`: number of things in the row that are exceptions to the rule. `steps`: step limit
    (default: two more than `length`). `decisive`: number of things in the row that count for
    success (default: all). Which things count is drawn for each task and stays hidden.
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
        exceptions: int,
        steps: int | None,
        decisive: int | None = None,
        dials: Dials | None = None,
    ) -> None:
        named, answering = self.words.things.split(), self.words.answers.split()
        self.things = named[: integer(*things, 1, len(named))]
        self.answers = answering[: integer(*answers, 2, len(answering))]
        self.length = integer(*length, 1, len(self.things))
        self.exceptions = integer("exceptions", exceptions, 0, self.length)
        decisive = self.length if decisive is None else decisive
        self.decisive = integer("decisive", decisive, 1, self.length)
        steps = self.length + 2 if steps is None else steps
        self.dials = dials or Dials()
        self.spec = EnvSpec(
            name=name,
            system_prompt=system_prompt.format(answers=", ".join(self.answers)),
            max_steps=integer("steps", steps, self.length, 1000),
            max_response_tokens=8 + self.dials.words,
            prompts=PROMPTS,
        )
        # any fixed table works; this one spreads the answers evenly
        count = len(self.answers)
        self.rule = {
            thing: self.answers[(5 * i + i // count) % count] for i, thing in enumerate(self.things)
        }
        self.state = _State()

    def reset(self, *, seed: int, options: dict[str, Any] | None = None) -> ResetAnswer:
        """Starts the row that `seed` determines. The observation has the note and thing 0."""
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
            counted=rng.sample(range(self.length), self.decisive),
            ended=False,
        )
        note = f"note: {', '.join(self.state.note)}. " if changed else ""
        return note + self._view(), {}

    def step(self, action: str) -> StepAnswer:
        state = self.state
        if state.ended:
            return "it is over.", 0.0, True, False, {}
        mark, remark, answer = self._judge(action)
        state.places.append(state.place)
        state.given.append(answer)
        state.marks.append(mark)
        state.place += mark != "wasted"
        terminated = state.place == self.length or (mark == "wrong" and self.wrong_ends)
        truncated = not terminated and len(state.marks) >= self.spec.max_steps
        state.ended = terminated or truncated
        reward = float(self._succeeded())
        then = "it is over." if state.ended else self._view()
        return f"{remark} {then}", reward, terminated, truncated, {"mark": mark}

    def close(self) -> None:
        """Does nothing."""

    def snapshot(self) -> bytes:
        return json.dumps(vars(self.state)).encode()

    def restore(self, state: bytes) -> None:
        self.state = _State(**json.loads(state))

    def feedback(self) -> str:
        return f"{self.state.marks.count('right')} of {self.length} right."

    def demonstration(self) -> list[str]:
        """Returns the answers that the rest of the row needs."""
        needs = self.state.needs[self.state.place :]
        return [self._thinking(f"{self.words.verb} {need}") for need in needs]

    def right_answers(self) -> list[str]:
        """Returns the right answer in its usual spellings, if the row has one thing and an attempt
        one step. If words of thought come before the answer, returns [], since any words would be
        right."""
        if self.length > 1 or self.spec.max_steps > 1 or self.dials.words:
            return []
        right = f"{self.words.verb} {self.state.needs[0]}"
        return [text + end for text in (right, right.capitalize()) for end in ("", ".")]

    def demonstrate(self, skill: Skill, rng: random.Random, advice: str = "") -> str:
        """Returns a demonstrator's next action (envs.base.Demonstrating).

        The demonstrator does not know the rule for the first `skill.withheld` things of the world.
        """
        state = self.state
        thing = state.row[state.place]
        noted = dict(re.findall(r"(\w+) needs (\w+)", f"{', '.join(state.note)}, {advice}"))
        known = thing not in self.things[: skill.withheld]
        draw = rng.random()
        if self.words.waste not in advice and draw < skill.waste:
            return self._thinking(self.words.waste)
        if draw > 1 - skill.mistakes:
            answer = rng.choice(self.answers)
        elif thing in noted:
            answer = noted[thing]
        elif known or (skill.certainty and rng.random() < skill.certainty):
            answer = self.rule[thing]
        else:
            answer = rng.choice([a for a in self.answers if f"not {a} for {thing}" not in advice])
        return self._thinking(f"{self.words.verb} {answer}")

    def reflection(self) -> dict[str, Any]:
        """Returns a teacher's reflection. It says only what the attempt's log shows.

        The retry starts at the first wrong step of a failure, or else at the first wasted step.
        With hint=none, a failure is retried from step 0.
        """
        marks, succeeded = self.state.marks, self._succeeded()
        blind = self.dials.hint == "none" and not succeeded
        wasted = [k for k, mark in enumerate(marks) if mark == "wasted"]
        wrong = [k for k, mark in enumerate(marks) if mark == "wrong" and not (succeeded or blind)]
        bad = [0] if blind else wrong or wasted
        advice = [self._fact(k) for k in wrong] + ([f"not to {self.words.waste}"] if wasted else [])
        suggestion = f"remember {', '.join(advice)}"
        if blind:
            suggestion = ", ".join(["try again from step 0", *advice])
        outcome = "failure" if not succeeded else "success_but_inefficient" if bad else "success"
        return {
            "trajectory_summary": self._summary(),
            "root_cause_analysis": f"step {self._shown(bad[0])}" if bad and not blind else None,
            "trajectory_outcome": outcome,
            "improvement_suggestion": suggestion if bad else None,
            "retry_from_step": bad[0] if bad else None,
        }

    def vocabulary(self) -> list[str]:
        """Returns texts that together contain every word the world can use under any settings."""
        spec = [self.spec.system_prompt, *self.spec.prompts.values()]
        remarks = [text for text in vars(self.words).values() if isinstance(text, str)]
        advice = ["remember", "not for", "all right", "try again from step"]
        return [*remarks, *self.words.marks.values(), *advice, *spec, self._unknown("")]

    def practice(self) -> list[dict[str, Any]]:
        """Returns options that set the number of exceptions. A thing has at most one exception."""
        counts = (self.exceptions, self.exceptions, 2, self.length - 1, self.length)
        return [{"exceptions": min(count, self.length)} for count in counts]

    def told(self) -> dict[str, Any]:
        """Returns options for a full note. A full note says what each thing in the row needs."""
        return {"exceptions": self.length}

    def _judge(self, action: str) -> tuple[Mark, str, str]:
        """Returns (mark, remark, answer) for an action. A wasted step has the answer ""."""
        words, state = self.words, self.state
        thing, need = state.row[state.place], state.needs[state.place]
        spoken = action.lower().rstrip(" .").split()
        if self.dials.words:  # then only the end of the action counts
            spoken = spoken[-1:] if spoken[-1:] == [words.waste] else spoken[-2:]
        match spoken:
            case [verb, answer] if verb == words.verb and answer in self.answers:
                mark: Mark = "right" if answer == need else "wrong"
                return mark, self._remark(mark).format(thing=thing, need=need), answer
            case [waste] if waste == words.waste:
                return "wasted", words.wasted, ""
        return "wasted", self._unknown(" ".join(spoken) if self.dials.words else action), ""

    def _remark(self, mark: Mark) -> str:
        if self.dials.hint == "none":
            return self.words.done
        if mark == "right":
            return self.words.right
        return self.words.wrong_where if self.dials.hint == "where" else self.words.wrong

    def _thinking(self, answer: str) -> str:
        """Puts words of thought before an answer. They never change, so they are easy to learn."""
        return " ".join([*self.words.thought.split()[: self.dials.words], answer])

    def _unknown(self, action: str) -> str:
        quoted = " ".join(action.split())[:40]
        verb, waste = self.words.verb, self.words.waste
        return f'"{quoted}" is not understood, say {verb} and a word, or {waste}.'

    def _view(self) -> str:
        return f"{self.words.place} {self.state.place} has {self.state.row[self.state.place]}"

    def _fact(self, step: int) -> str:
        """Returns what a reflection says about a wrong step."""
        place = self.state.places[step]
        thing = self.state.row[place]
        if self.dials.hint == "where":
            return f"not {self.state.given[step]} for {thing}"
        return f"{thing} needs {self.state.needs[place]}"

    def _shown(self, step: int) -> str:
        """Returns a step's number and outcome. If the remark hid the outcome, writes "done"."""
        mark = self.state.marks[step]
        unsaid = self.dials.hint == "none" and mark != "wasted"
        return f"{step} {'done' if unsaid else self.words.marks[mark]}"

    def _summary(self) -> str:
        """Lists the steps' outcomes. With summary=brief, lists only steps known to be mistakes."""
        plain = {"right", "wrong"} if self.dials.hint == "none" else {"right"}
        brief, marks = self.dials.summary == "brief", self.state.marks
        listed = [self._shown(k) for k, mark in enumerate(marks) if not (brief and mark in plain)]
        if listed:
            return f"step {', '.join(listed)}"
        return "all right" if self._succeeded() else self.feedback().rstrip(".")

    def _succeeded(self) -> bool:
        wrong = {
            place
            for place, mark in zip(self.state.places, self.state.marks, strict=True)
            if mark == "wrong"
        }
        return self.state.place == self.length and wrong.isdisjoint(self.state.counted)
