"""Draws a bar with the ETA and one changing line below the lines of a run, on a terminal.

step 12/40 ━━━━━━━╺━━━━━━━━━━━━━━━━ 6.0 s a step, ETA 2.8 min
step 12/40  reward 0.50  success base 0.25 retry 0.75 …
"""

import os
import re
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from launch.console import run_name, step_line
from launch.inspection.snapshot import RECENT, Progress, forecast
from launch.inspection.status import ago
from r3l.files.progress_lines import StepLine
from r3l.files.run_folder import RunFolder
from r3l.text import printable

REFRESHES_PER_S = 2
NUMBERS = re.compile(r"\d+(\.\d+)?")


class LiveView:
    """A view of the run in folder `run`: `made` of `steps` steps are done."""

    def __init__(self, run: Path, steps: int, made: Iterable[StepLine], file: TextIO) -> None:
        from rich.console import Console
        from rich.live import Live

        self._run, self._steps, self._began = run_name(run), steps, time.time()
        self._recent = deque(made, maxlen=RECENT + 1)
        self._changing, self._repeated = "starts the buffer service", ""
        self._terminal = Console(file=file, highlight=False)
        self._live = Live(
            console=self._terminal,
            get_renderable=self._view,
            refresh_per_second=REFRESHES_PER_S,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def say(self, line: str) -> None:
        """Print a line above the bar. A line that differs from the previous one only in numbers
        replaces the changing line."""
        repeated, self._repeated = self._repeated, NUMBERS.sub("#", line)
        if self._repeated == repeated:
            self._changing = line
        else:
            self._terminal.print(line, markup=False, soft_wrap=True)

    def show(self, line: str) -> None:
        self._changing = printable(line)

    def step(self, line: StepLine) -> None:
        """Move the bar to a step, and show it in the changing line."""
        self._repeated = ""  # after a step, a repeated line is printed again
        self._changing = step_line(line, self._steps)
        self._recent.append(line)

    def again(self, version: int) -> None:
        """Forget the steps after `version`: the learner continues from that checkpoint."""
        while self._recent and self._recent[-1].step > version:
            self._recent.pop()

    def close(self) -> None:
        """Draw the view a last time and leave it on the terminal."""
        with suppress(OSError):
            self._live.stop()

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
        return Group(head, Text(self._changing))

    def _eta(self, progress: Progress) -> str:
        if progress.last_ago_s is None:
            return ago(time.time() - self._began)
        if progress.step >= self._steps:
            return "all steps are done"
        if progress.end_s is None or progress.step_s is None:
            return ""
        return f"{progress.step_s:.1f} s a step, ETA {ago(max(progress.end_s, 0.0))}"


def can_draw(file: TextIO) -> bool:
    """Whether `file` is a terminal that can move its cursor."""
    return file.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")


@contextmanager
def live_view(run: Path, steps: int, *, quiet: bool = False) -> Iterator[LiveView | None]:
    """Opens a view on standard output, and closes it; None if the terminal cannot draw it or it is
    not wanted."""
    if quiet or not can_draw(sys.stdout):
        yield None
        return
    with closing(LiveView(run, steps, RunFolder(run).history().steps, sys.stdout)) as view:
        yield view
