"""Your own data: questions and answers from a file of JSON lines, with a prompt of your own.

    {"question": "How many legs has a spider?", "answer": "8"}

r3l-launch --env examples/own_questions.py:Questions env.options.file=questions.jsonl --model MODEL
"""

from envs import ListedTasks, Task, json_lines
from r3l.rollout.env_interface import EnvSpec


class Questions:
    """One question an attempt, with as many `tries` as the option says."""

    in_process = True

    def __init__(self, file: str = "questions.jsonl", tries: int = 2) -> None:
        self.tries = tries
        self.spec = EnvSpec(
            "questions",
            "Answer with a single word or number.",
            max_steps=tries,
            max_response_tokens=64,
            # Overrides of r3l/rollout/prompts/*.md; r3l-launch --show-prompts prints all of them.
            prompts={"guidance": "A hint for this question: {improvement_suggestion}"},
        )

    @staticmethod
    def task_source(file: str = "questions.jsonl", **_):
        """Every tenth question is for evaluation. What a task needs is in its options."""
        rows = json_lines(file, "question", "answer")  # names a line that lacks one of them
        tasks = [Task(f"q/{n}", "questions", n, row) for n, row in enumerate(rows)]
        held_out = tasks[::10]
        return ListedTasks({"train": [t for t in tasks if t not in held_out], "eval": held_out})

    def reset(self, *, seed, options=None):
        """`options` are those of the task."""
        self.answer, self.left = str(options["answer"]), self.tries
        return str(options["question"]), {}

    def step(self, action):
        """The reward is 1 for the answer of the file, whatever its case."""
        self.left -= 1
        if action.strip().lower() == self.answer.lower():
            return "Right.", 1.0, True, False, {}
        return "Wrong.", 0.0, self.left == 0, False, {}

    def demonstration(self):
        """Makes a warm-up possible."""
        return [self.answer]

    def right_answers(self):
        """Lets an evaluation measure the exact probability of the right answer."""
        return [self.answer, self.answer.lower(), self.answer.capitalize()] * (self.tries == 1)

    def close(self):
        """Nothing is held open."""
