"""The files of an evaluation: what is refused, what is read again."""

import json

import pytest

from learner.evaluation.evaluation_folder import (
    EvaluationFolder,
    further_parts,
    part_folder,
    read_attempts,
    read_other,
    read_settings,
    settings_of,
    write_evaluation,
)
from learner.evaluation.metrics import report
from r3l.errors import UserError
from r3l.files.whole_file import write_json
from r3l.run.config import load
from r3l.run.files.json_lines import encoded
from tests.learner.evaluation.fakes import attempted, turn

SAID = attempted("t", 0, steps=(turn("\x1b[2J ä \ud800", "b", 3, 0.5),), reward=0.5, last="end")


def test_a_folder_of_another_evaluation_is_refused_and_says_what_differs(tmp_path):
    EvaluationFolder(tmp_path, {"seed": 7, "split": "eval"})  # of which nothing was played
    folder = EvaluationFolder(tmp_path, {"seed": 0, "split": "eval"})
    folder.add(attempted("t", 0))
    with pytest.raises(UserError, match=r"seed 0, but this one has 1"):
        EvaluationFolder(tmp_path, {"seed": 1, "split": "eval"})
    for damaged in (b"", b"{}", b"[]", b"5", b"\xff"):
        (tmp_path / "settings.json").write_bytes(damaged)
        with pytest.raises(UserError, match=r"settings\.json|seed None"):
            EvaluationFolder(tmp_path, {"seed": 0, "split": "eval"})


@pytest.mark.parametrize(
    "line", [b"nope", b"[1]", b"{}", b"\xff", encoded({"task_id": "t", "attempt": "0"})[:-1]]
)
def test_an_attempt_on_a_damaged_line_is_played_again(tmp_path, line):
    folder = EvaluationFolder(tmp_path, {})
    folder.add(SAID)
    with (tmp_path / "results.jsonl").open("ab") as file:
        file.write(line + b"\n")
    again = EvaluationFolder(tmp_path, {})
    assert again.done == {SAID.key: SAID} and again.missing([SAID.key, ("u", 0)]) == [("u", 0)]


def test_half_a_line_of_a_killed_evaluation_is_cut_off(tmp_path):
    folder = EvaluationFolder(tmp_path, {})
    folder.add(SAID)
    with (tmp_path / "results.jsonl").open("a") as file:
        file.write('{"task_id": "t/')
    again = EvaluationFolder(tmp_path, {})
    assert again.done == {SAID.key: SAID}
    again.add(next_one := attempted("t", 1))
    assert read_attempts(tmp_path, "--read") == [SAID, next_one]


def test_a_whole_evaluation_is_read_as_it_was_written_one_attempt_a_line(tmp_path):
    settings = settings_of(load(), model="m", weights="step 3", split="eval")
    attempts = [SAID, attempted("t", 1, cause="environment_hang")]
    write_evaluation(tmp_path, settings, attempts, report(attempts))
    assert read_attempts(tmp_path, "--read") == attempts
    assert read_settings(tmp_path) == settings
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == 2
    written = json.loads((tmp_path / "report.json").read_text())
    assert written["all"]["estimates"]["reward"]["mean"] == 0.25


def test_further_parts_are_in_folders_named_by_their_temperatures(tmp_path):
    for temperature in (0.0, 0.25):
        write_evaluation(part_folder(tmp_path, temperature), {}, [SAID], report([SAID]))
    (tmp_path / "temperature-x").mkdir()
    found = further_parts(tmp_path)
    assert found == {0.0: tmp_path / "temperature-0", 0.25: tmp_path / "temperature-0.25"}
    assert part_folder(tmp_path, None) == tmp_path and not further_parts(found[0.0])
    config = load(None, ["eval.temperatures=[1,0]", "eval.exact=true"])
    known = {"model": "m", "weights": "w", "split": "eval"}
    first, greedy = settings_of(config, **known), settings_of(config, **known, temperature=0.0)
    assert (first.pop("exact"), first.pop("temperature"), greedy.pop("temperature")) == (True, 1, 0)
    assert first == greedy


def test_of_an_evaluation_that_never_began_nothing_is_left(tmp_path):
    EvaluationFolder(tmp_path / "new", {}).close()
    assert not list(tmp_path.iterdir())


def test_what_is_no_evaluation_is_refused_with_the_option_that_named_it(tmp_path):
    with pytest.raises(UserError, match=r"--read .*results\.jsonl"):
        read_attempts(tmp_path, "--read")


@pytest.mark.parametrize(
    ("file", "said"),
    [("unfinished.json", "an unfinished warm-up, .* --model"), ("config.yaml", "a run; name one"),
     ("config.json", "a model; evaluate it"), ("other", "found no attempt")],
)  # fmt: skip
def test_a_folder_of_something_else_is_refused_with_what_it_is(tmp_path, file, said):
    (tmp_path / file).write_text("{}")
    with pytest.raises(UserError, match=f"^--against .*: (is )?{said}"):
        read_other(tmp_path, {"t"}, {})


def test_an_evaluation_of_other_tasks_is_refused(tmp_path):
    def settings(*overrides):
        config = load(None, list(overrides))
        return settings_of(config, model="m", weights="w", split="eval")

    there = [attempted(f"t{n}", 0) for n in range(2)]
    write_evaluation(tmp_path, settings("env=keys"), there, report(there))
    assert read_other(tmp_path, {"t0", "t1"}, settings("env=keys", "seed=3")) == there
    with pytest.raises(UserError, match=r"2 tasks, .*share 1;"):
        read_other(tmp_path, {"t0", "t9"}, settings("env=keys"))
    for other in (["env=workshop"], ["env=keys", "env.options.locks=4"]):
        with pytest.raises(UserError, match="its environment or split differs"):
            read_other(tmp_path, {"t0", "t1"}, settings(*other))
    panels = [settings("env=keys") | {"panel": {"digest": digest}} for digest in ("a", "b")]
    write_json(tmp_path / "settings.json", panels[0])
    assert read_other(tmp_path, {"t0", "t1"}, panels[0]) == there
    assert read_other(tmp_path, {"t0", "t1"}, settings("env=keys")) == there
    with pytest.raises(
        UserError, match="same names, but its panel is a and this evaluation's is b"
    ):
        read_other(tmp_path, {"t0", "t1"}, panels[1])
    write_json(tmp_path / "settings.json", {"env": 3})
    with pytest.raises(UserError, match="its environment or split differs"):
        read_other(tmp_path, {"t0", "t1"}, settings())
