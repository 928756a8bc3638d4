"""What r3l-launch draws on a terminal."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from launch.live_view import can_draw, live_view

STEP = {
    "group/reward_mean": 0.5, "group/success_base": 0.25,
    "group/success_retry": 0.75, "staleness/mean": 1.2, "staleness/max": 3.0,
    "actor/tokens_per_s": 1812.0, "learner/tokens_per_s": 940.0, "actor/idle_share": 0.74,
    "learner/idle_share": 0.02,
}  # fmt: skip
SHOW = f"""
import sys, time
from pathlib import Path
from launch.live_view import LiveView
from r3l.files.progress_lines import StepLine
steps = [StepLine(step, {STEP!r}, time.time() - 60 + 6 * step) for step in range(1, 11)]
view = LiveView(Path("runs/demo"), 40, steps[:7] if "resumed" in sys.argv else [], sys.stdout)
view.show("5 s: " + ", ".join(f"actor-{{n}} starts its engine" for n in range(9)))
time.sleep(1.2)
if "resumed" not in sys.argv:
    for step in steps:
        view.step(step)
    view.say("actor-0 ended with [red]exit code 9[/red]; restarted")
    for second in range(5, 50):
        view.say(f"learner: step 11 waits: {{second}} s of 60 s")
    time.sleep(1.2)
view.close()
print("the end")
"""


@pytest.fixture(autouse=True)
def _a_terminal_that_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("PYTHONIOENCODING", "utf-8")


def on_a_terminal(*arguments: str) -> str:
    """What the script writes to a terminal of 100 columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
    with subprocess.Popen([sys.executable, "-c", SHOW, *arguments], stdout=theirs) as shown:
        os.close(theirs)
        text = b"".join(read(ours))
        assert shown.wait(60) == 0
    os.close(ours)
    return text.decode()


def read(terminal: int) -> Iterator[bytes]:
    """The terminal's output, until no process has it open."""
    while True:
        try:
            piece = os.read(terminal, 1 << 16)
        except OSError:  # EIO: how Linux reports it
            return
        if not piece:
            return
        yield piece


def plain(text: str) -> str:
    """The text without colours and moves of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r", "")


def test_a_terminal_shows_a_bar_the_eta_and_the_last_step_below_the_lines() -> None:
    written = on_a_terminal()
    text = plain(written)
    assert re.search(r"step 0/40 ━+ \d\.\d s *\n5 s: actor-0 starts its engine, actor-1", text)
    last = text[text.rindex("demo step 10/40") :]
    assert re.search(r"step 10/40 ━.* 6\.0 s a step, ETA (2\.[5-9]|3\.0) min", last)
    assert "the end" in last
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is back


def test_lines_that_need_attention_scroll_above_the_view_as_they_are() -> None:
    text = plain(on_a_terminal())
    said = text.index("actor-0 ended with [red]exit code 9[/red]; restarted\n")
    assert said < text.rindex("demo step 10/40")


def test_a_line_that_differs_only_in_its_numbers_changes_in_place() -> None:
    text = plain(on_a_terminal())
    assert text.count("waits: 5 s of 60 s") == 1
    assert text.rindex("waits: 49 s of 60 s") > text.rindex("demo step 10/40")


def test_the_bar_of_a_resumed_run_starts_at_its_step() -> None:
    text = plain(on_a_terminal("resumed"))
    assert "step 7/40 ━" in text and "step 0/40" not in text


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_file_or_a_terminal_that_cannot_draw_has_no_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, term: str
) -> None:
    with (tmp_path / "out").open("w") as file:
        assert not can_draw(file)
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        assert can_draw(terminal)
        monkeypatch.setenv("TERM", term)
        assert not can_draw(terminal)
    os.close(ours)


def test_a_pipe_gets_no_view(tmp_path: Path) -> None:
    with live_view(tmp_path, 4) as view, live_view(tmp_path, 4, quiet=True) as quiet:
        assert view is quiet is None
