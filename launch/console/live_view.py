"""Shows a run: a live view on a terminal, plain lines elsewhere, little with --quiet.

Run ── say: notices, restarts, the end ──►  Console: lines; with --quiet only `say`
    ── starting, step, evaluation ───────►    └── LiveView: a bar and the last step below the lines
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from launch.console.progress import eval_line, run_name, step_line
from launch.inspection.snapshot import RECENT, Progress, forecast
from launch.inspection.status import ago
from r3l.files.progress_lines import EvalLine, StepLine

REFRESHES_PER_S = 2


class Console:
    """Prints plain lines; if `quiet`, only the summary and whatever needs attention."""

    def __init__(self, say: Callable[[str], None], *, quiet: bool = False) -> None:
        self._write, self.quiet = say, quiet

    def say(self, line: str) -> None:
        """Print a line. A terminal that was closed, or a full disk, does not end the run."""
        with contextlib.suppress(OSError):
            self._write(line)

    def _show(self, line: str) -> None:
        if line and not self.quiet:
            self.say(line)

    def starting(self, line: str) -> None:
        """Show which processes are still starting. `line`: "" if all are ready."""
        self._show(line)

    def step(self, line: StepLine, steps: int) -> None:
        """Show an optimizer step; `steps`: the total."""
        self._show(step_line(line, steps))

    def again(self, version: int) -> None:
        """Forget the steps after `version`: the learner has returned to that checkpoint."""

    def evaluation(self, line: EvalLine) -> None:
        """Show the result of an evaluation."""
        self._show(eval_line(line))

    def close(self) -> None:
        """Close the view."""


class LiveView(Console):
    """Draws a bar with the ETA and the last step below the lines, twice a second."""

    def __init__(self, run: Path, steps: int, file: TextIO) -> None:
        from rich.console import Console as Terminal
        from rich.live import Live

        self._run, self._steps = run_name(run), steps
        self._last_line, self._began = "starts the buffer service", time.time()
        self._recent: deque[StepLine] = deque(maxlen=RECENT + 1)
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
        """Show which processes are still starting."""
        self._last_line = line or "waits for the first step"

    def step(self, line: StepLine, steps: int) -> None:
        """Show an optimizer step in place of the previous one."""
        self._steps, self._last_line = steps, step_line(line, steps)
        self._recent.append(line)

    def again(self, version: int) -> None:
        """Remove the steps after `version` from the forecast."""
        while self._recent and self._recent[-1].step > version:
            self._recent.pop()

    def close(self) -> None:
        """Draw the view a last time and leave it on the terminal."""
        with contextlib.suppress(OSError):
            self._live.stop()

    def _print(self, line: str) -> None:
        self._terminal.print(line, markup=False, soft_wrap=True)

    def _view(self) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        progress = forecast(list(self._recent), self._steps, time.time())
        bar = ProgressBar(total=max(self._steps, 1), completed=progress.step, width=24)
        step = f"step {progress.step}/{self._steps}"
        head = Table.grid(padding=(0, 1))
        head.add_row(Text(self._run), step, bar, Text(self._eta(progress)))
        return Group(head, Text(self._last_line))

    def _eta(self, progress: Progress) -> str:
        if progress.last_ago_s is None:
            return ago(time.time() - self._began)
        if progress.step >= self._steps:
            return "all steps are done"
        if progress.end_s is None or progress.step_s is None:
            return ""
        return f"{progress.step_s:.1f} s a step, ETA {ago(max(progress.end_s, 0.0))}"


def console_for(
    run: Path, steps: int, say: Callable[[str], None], *, quiet: bool, file: TextIO | None = None
) -> Console:
    """Chooses how to show a run: quiet, live if the terminal can draw, otherwise plain lines."""
    file = sys.stdout if file is None else file
    if (
        not quiet
        and file.isatty()
        and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")
    ):
        return LiveView(run, steps, file)
    return Console(say, quiet=quiet)
