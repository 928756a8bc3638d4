"""What `r3l-launch` shows: a live view on a terminal, plain lines elsewhere, little with --quiet.

Run ── say: notices, restarts, the end ──►  Console (lines)
    ── starting, step, evaluation ───────►    ├── Quiet: only what `say` brings
                                              └── LiveView: a view below the lines (rich)
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from launch.console.progress import eval_line, run_name, step_line, who_waits
from launch.inspection.snapshot import RECENT, forecast
from launch.inspection.status import ago
from r3l.files.progress_lines import EvalLine, StepLine

CURVE = 40  # steps shown as a curve
BARS = "▁▂▃▄▅▆▇█"
REFRESHES_PER_S = 2


class Console:
    """Plain lines, each printed by `say`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say

    def starting(self, line: str) -> None:
        """Show which processes still start; "" if all are ready."""
        if line:
            self.say(line)

    def step(self, line: StepLine, steps: int) -> None:
        """Show an optimizer step of `steps`."""
        self.say(step_line(line, steps))

    def again(self, version: int) -> None:
        """Forget the steps after `version`: the learner went back to a checkpoint."""

    def evaluation(self, line: EvalLine) -> None:
        """Show an evaluation."""
        self.say(eval_line(line))

    def close(self) -> None:
        """End a view."""


class Quiet(Console):
    """Only what needs attention, and the end."""

    def starting(self, line: str) -> None:
        """Show nothing."""

    def step(self, line: StepLine, steps: int) -> None:
        """Show nothing."""

    def evaluation(self, line: EvalLine) -> None:
        """Show nothing."""


class LiveView(Console):
    """A view that is drawn again twice a second; lines scroll above it."""

    def __init__(self, run: Path, steps: int, file: TextIO) -> None:
        from rich.console import Console as Terminal
        from rich.live import Live

        self._run, self._steps = run_name(run), steps
        self._starts, self._began = "the buffer service", time.time()
        self._recent: deque[StepLine] = deque(maxlen=max(CURVE, RECENT + 1))
        self._evaluated: EvalLine | None = None
        self._terminal = Terminal(file=file, highlight=False)
        self._live = Live(
            console=self._terminal,
            get_renderable=self._view,
            refresh_per_second=REFRESHES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()
        super().__init__(self._print)

    def starting(self, line: str) -> None:
        """Show which processes still start."""
        self._starts = line.partition(": ")[2] or "waits for the first step"

    def step(self, line: StepLine, steps: int) -> None:
        """Show an optimizer step in the view, without a line of its own."""
        self._steps = steps
        self._recent.append(line)

    def again(self, version: int) -> None:
        """Take later steps out of the curves."""
        while self._recent and self._recent[-1].step > version:
            self._recent.pop()

    def evaluation(self, line: EvalLine) -> None:
        """Show an evaluation in the view, and as a line."""
        self._evaluated = line
        self.say(eval_line(line))

    def close(self) -> None:
        """Draw the view a last time and leave it there."""
        self._live.stop()

    def _print(self, line: str) -> None:
        self._terminal.print(line, markup=False, soft_wrap=True)

    def _view(self) -> Any:
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        steps = list(self._recent)  # of the thread that reads them
        now = time.time()
        progress = forecast(steps, self._steps, now)
        head = Table.grid(padding=(0, 1))
        bar = ProgressBar(total=max(self._steps, 1), completed=progress.step, width=24)
        step = f"step {progress.step}/{self._steps}"
        head.add_row(Text(self._run), step, bar, Text(self._eta(progress)))
        table = Table.grid(padding=(0, 2))
        for name, text in self._rows(steps):
            line = Text(text, no_wrap=True, overflow="ellipsis")
            table.add_row(Text(name, style="bold"), line)
        whole = Table.grid()
        whole.add_row(head)
        whole.add_row(table)
        return whole

    def _eta(self, progress: Any) -> str:
        if progress.last_ago_s is None:
            return ago(time.time() - self._began)
        if progress.step >= self._steps:
            return "all steps are done"
        if progress.end_s is None or progress.step_s is None:
            return ""
        return f"{progress.step_s:.1f} s a step, ETA {ago(max(progress.end_s, 0.0))}"

    def _rows(self, steps: list[StepLine]) -> list[tuple[str, str]]:
        if not steps:
            return [("starts", self._starts)]
        last = steps[-1].metrics
        evaluated = ""
        if self._evaluated:
            success, step = self._evaluated.success, self._evaluated.step
            evaluated = f"   held-out {success:.2f} at step {step}"
        return [
            (
                "success",
                f"base {_curve(steps, 'group/success_base')}   "
                f"retry {_curve(steps, 'group/success_retry')}{evaluated}",
            ),
            (
                "staleness",
                f"{last.get('staleness/mean', 0.0):.1f} versions, oldest "
                f"{last.get('staleness/max', 0.0):.0f}",
            ),
            (
                "tokens/s",
                f"{last.get('actor/tokens_per_s', 0.0):,.0f} sampled, "
                f"{last.get('learner/tokens_per_s', 0.0):,.0f} trained",
            ),
            ("waits", who_waits(last)),
        ]


def _curve(steps: list[StepLine], tag: str) -> str:
    """The last value of a share, after the last CURVE as bars."""
    values = [step.metrics[tag] for step in steps if tag in step.metrics][-CURVE:]
    if not values:
        return "–"
    bars = "".join(BARS[min(int(max(value, 0.0) * len(BARS)), len(BARS) - 1)] for value in values)
    return f"{bars} {values[-1]:.2f}"


def console_for(
    run: Path, steps: int, say: Callable[[str], None], *, quiet: bool, file: TextIO | None = None
) -> Console:
    """The console of a run: quiet if asked for, live on a terminal that can draw, else lines."""
    file = sys.stdout if file is None else file
    if quiet:
        return Quiet(say)
    if file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", ""):
        return LiveView(run, steps, file)
    return Console(say)
