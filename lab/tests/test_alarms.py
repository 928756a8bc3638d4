"""Runs that must raise an alarm, and good ones: their cases, lines and table."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from lab.alarms import __main__ as program
from lab.alarms.__main__ import chosen_cases, measure, outcome, setup, table, today, told
from lab.alarms.cases import BAD, CASES, GOOD, RUNS, SAYS
from lab.alarms.luck import Luck
from lab.results.lines import ROOT
from launch.inspection import learning
from r3l.errors import UserError
from r3l.run.files.progress_lines import StepLine
from tests.launch.fakes import until
from tests.processes import lives


def line(name: str, seed: int = 0, *alarms: str, **more: object) -> dict[str, object]:
    made = {"case": name, "seed": seed, "setup": setup(CASES[name]), "seconds": 20.0, "console": 1}
    return made | {"alarms": dict.fromkeys(alarms, 3), "notes": {}, "doctor": [*alarms]} | more


def test_every_alarm_of_the_rules_has_ten_runs_that_must_raise_it_and_a_row() -> None:
    source = Path(learning.__file__).read_text("utf-8")
    named = set(re.findall(r'^\s+"((?:\w+ ){0,3}\w+)",$|"(entropy grows)"', source, re.M))
    raised = {name for case in BAD for name in case.raises}
    assert raised == SAYS.keys()
    assert raised <= {name for pair in named for name in pair}
    for name in raised:
        assert sum(case.seeds for case in BAD if name in case.raises) == RUNS
    assert sum(case.seeds for case in GOOD) == 20 and not any(case.raises for case in GOOD)


def test_cases_are_chosen_by_their_name_or_by_an_alarm() -> None:
    assert [case.name for case in chosen_cases(["no success", "dapo"])] == ["hopeless", "dapo"]
    assert len(chosen_cases([])) == len(BAD) + len(GOOD)
    with pytest.raises(UserError, match="--only nothing: unknown; cases are context, "):
        chosen_cases(["nothing"])


def test_a_run_that_is_in_the_file_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, made = tmp_path / program.FILE, list[int]()
    other = line("tools", 1, setup="of other settings")
    file.write_text("".join(f"{json.dumps(each)}\n" for each in (line("tools"), other)))

    def measured(case: object, seed: int) -> dict[str, object]:
        made.append(seed)
        return line("tools", seed, "unused tools")

    monkeypatch.setattr(program, "measure", measured)
    arguments = ["--only", "tools", "--seeds", "3", "--lines", str(tmp_path)]
    program.main(arguments, standalone_mode=False)
    assert made == [1, 2] and "tools, seed 2: as it should be (20 s)" in capsys.readouterr().out
    assert today(newest := program.read(tmp_path)[-1]) and newest["seed"] == 2


def test_the_table_counts_runs_that_raise_what_they_must_and_false_alarms() -> None:
    silent = line("breaks", 1, "far from the sampler", console=0)
    found = table([
        line("breaks", 0, "far from the sampler"), silent, line("grpo", 0, "no success"),
        line("grpo", 1), line("grpo", 2, setup="of other settings"),
    ])  # fmt: skip
    assert re.search(r"\| far from the sampler \| .* \| 1 of 2 \| 2 \|", found)
    assert re.search(r"\| far from the reference \| .* \| 0 of 2 \| 0 \|", found)
    assert "| grpo | 2 | 1 (no success) |" in found
    assert "\n1 of 2 good runs had a false alarm.\n" in found
    assert found.endswith("were changed later: grpo, as it should be (20 s).\n")
    assert outcome(silent) == "lacks far from the reference"
    assert outcome(line("grpo", 0, "no success")) == "false: no success"


def test_an_alarm_is_told_with_the_step_after_which_it_was_given_first() -> None:
    steps = [StepLine(n, {"group/attempts": 64.0, "group/cut_responses": 0.9}) for n in (1, 2)]
    assert told(steps) == {
        "alarms": {"cut responses": 1},
        "notes": {"no success": 1},
    }


def test_luck_pays_by_chance_until_it_ends_and_only_the_asked_form() -> None:
    def reward(action: str, **options: object) -> float:
        world = Luck(**options)  # type: ignore[arg-type]
        world.reset(seed=0)
        world.step(action)
        return world.step(action)[1]

    assert reward("use saw", wins=1.0, form=True) == 1.0
    assert reward("look", wins=1.0, form=True) == 0.0 == reward("look", wins=0.0)
    assert reward("look", wins=1.0) == 1.0 and reward("look", wins=1.0, until=0) == 0.0


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_ends_with_the_program_that_made_it(tmp_path: Path, sign: signal.Signals) -> None:
    launcher, known = tmp_path / "launcher", tmp_path / "pid"
    launcher.write_text(
        f"#!/bin/sh\necho $$ > {known}.part\nmv {known}.part {known}\nexec sleep 99\n"
    )
    launcher.chmod(0o700)
    script = (
        "import sys; from lab.alarms.__main__ import CASES, measure; "
        f"sys.executable = {str(launcher)!r}; measure(CASES['grpo'], 0)"
    )
    with subprocess.Popen([sys.executable, "-c", script], cwd=ROOT) as program:
        until(known.exists)
        pid = int(known.read_text())
        program.send_signal(sign)
        assert program.wait(10) == -sign
    until(lambda: not lives(pid))


@pytest.mark.nightly
@pytest.mark.system
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["responses", "tools", "grpo"])
def test_a_real_run_raises_what_it_must_and_no_more(name: str) -> None:
    assert outcome(measure(CASES[name], 0)).startswith("as it should be")
