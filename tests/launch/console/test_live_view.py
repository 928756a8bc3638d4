"""What r3l-launch shows on a terminal, in a pipe, and with --quiet."""

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

from launch.console.live_view import Console, console_for
from launch.console.progress import who_waits

STEP = {
    "group/reward_mean": 0.5, "group/success_base": 0.25,
    "group/success_retry": 0.75, "staleness/mean": 1.2, "staleness/max": 3.0,
    "actor/tokens_per_s": 1812.0, "learner/tokens_per_s": 940.0, "actor/idle_share": 0.74,
    "learner/idle_share": 0.02,
}  # fmt: skip
SHOW = f"""
import sys, time
from pathlib import Path
from launch.console.live_view import console_for
from r3l.files.progress_lines import StepLine
from tests.r3l.files.made import evaluation
console = console_for(Path("runs/demo"), 40, print, quiet="quiet" in sys.argv)
console.starting("5 s: " + ", ".join(f"actor-{{n}} starts its engine" for n in range(9)))
time.sleep(1.2)
for step in range(1, 11):
    console.step(StepLine(step, {STEP!r}, time.time() - 60 + 6 * step), 40)
console.evaluation(evaluation(10))
console.say("actor-0 ended with [red]exit code 9[/red]; restarted")
time.sleep(1.2)
console.close()
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
    assert re.search(r"step 10/40 ━.* 6\.0 s a step, ETA (2\.9|3\.0) min", last)
    assert "step 10/40  reward 0.50  success base 0.25 retry 0.75" in last
    assert "1812 tok/s  actors idle 74 %" in " ".join(last.split("\n")).replace("   ", "  ")
    assert "the end" in last
    assert written.rindex("\x1b[?25h") > written.rindex("\x1b[?25l")  # the cursor is back


def test_lines_that_need_attention_scroll_above_the_view_as_they_are() -> None:
    text = plain(on_a_terminal())
    said = text.index("actor-0 ended with [red]exit code 9[/red]; restarted\n")
    assert text.index("eval at step 10: success 0.50") < said < text.rindex("demo step 10/40")


def test_a_pipe_gets_plain_lines() -> None:
    shown = subprocess.run([sys.executable, "-c", SHOW], capture_output=True, text=True, check=True)
    lines = shown.stdout.splitlines()
    assert "\x1b" not in shown.stdout
    assert lines[0].startswith("5 s: actor-0 starts its engine, actor-1 starts")
    assert lines[1].startswith("step  1/40  reward 0.50") and lines[10].startswith("step 10/40")
    assert lines[1].endswith("1812 tok/s  actors idle 74 %: learner-bound")
    assert lines[11].startswith("eval at step 10")
    assert lines[12].startswith("actor-0 ended") and lines[13:] == ["the end"]


def test_quiet_says_only_what_needs_attention_on_a_terminal_too() -> None:
    expected = "actor-0 ended with [red]exit code 9[/red]; restarted\nthe end\n"
    assert on_a_terminal("quiet").replace("\r", "") == expected


def test_a_terminal_that_cannot_draw_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    text = on_a_terminal()
    assert "\x1b" not in text and "step 10/40  reward" in text


def test_who_waits_is_said_in_words_of_the_field() -> None:
    def words(learner: float, actors: float) -> str:
        return who_waits({"learner/idle_share": learner, "actor/idle_share": actors})

    assert words(0.02, 0.74) == "actors idle 74 %: learner-bound"
    assert words(0.6, 0.3) == "learner idle 60 %: actor-bound"
    assert words(0.05, 0.04) == "balanced: learner idle 5 %, actors idle 4 %"


def test_a_file_is_no_terminal(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as file:
        console = console_for(tmp_path, 1, print, quiet=False, file=file)
    assert type(console) is Console
