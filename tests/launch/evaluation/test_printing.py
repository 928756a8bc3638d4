"""What r3l-eval prints of an evaluation."""

from launch.evaluation.printing import comparison_table, conversations, panel_line, table
from learner.evaluation.metrics import compare, report
from r3l.text import printable
from tests.learner.evaluation.fakes import attempted, turn


def said(task, reward, *texts, **more):
    steps = tuple(turn(f"sees {text}", text, 3, reward) for text in texts)
    return attempted(task, 0, reward=reward, steps=steps, length=9, finish="terminated", **more)


def test_the_table_has_a_line_for_all_tasks_and_one_for_each_family():
    found = report([said("a", 1.0, "x", family="a"), said("b", 0.0, "y", family="b\x1b[2J")])
    lines = printable(table(found)).splitlines()  # as echo prints it
    assert lines[0].split()[:5] == ["tasks", "failed", "faults", "success", "reward"]
    assert [line.split()[0] for line in lines[1:4]] == ["all", "a", "b\\x1b[2J"]
    assert "length" in lines[0] and "9, p95 9, max 9" in lines[1]
    assert "–" in table(report([attempted("t", 0, cause="x")]))


def test_further_temperatures_have_lines_of_their_own_below_the_first_ones():
    warm, greedy = report([said("a", 0.0, "x")]), report([said("a", 1.0, "x")])
    lines = table(warm, {"0": greedy}, "1").splitlines()
    assert [line.split("  ")[0] for line in lines[1:3]] == [
        "temperature 1: all",
        "temperature 0: all",
    ]
    assert table(warm) == table(warm, {}, "1")


def test_a_panel_is_named_with_its_digest_and_with_what_speaks_against_it():
    panel = {"env": "keys", "split": "eval", "tasks": 5, "digest": "ab"}
    line = "panel: keys, eval, 5 tasks, digest ab"
    assert panel_line({"panel": panel}, {}) == line
    assert panel_line({"panel": panel}, {"keys": "ab"}) == f"{line}, as shipped"
    assert (
        panel_line({"panel": panel, "not_comparable": "why"}, {}) == f"{line}\nnot comparable: why"
    )
    assert "unknown" in panel_line({"panel": panel | {"digest": ""}}, {"keys": ""})
    assert panel_line({}, {}) == ""


def test_a_comparison_shows_counts_and_the_difference():
    found = comparison_table(compare([said("a", 1.0, "x")], [said("a", 0.0, "x")]))
    assert found.splitlines()[1].split() == ["success", "1", "0", "0", "1", "[1,", "1]"]


def test_conversations_show_every_turn_failures_first():
    attempts = [
        said("won", 1.0, "open"),
        said("half", 0.5, "knock"),
        said("lost", 0.0, "kick", "run", system="Be brief.", last="Over.", feedback="No key."),
        attempted("broken", 0, cause="environment_hang"),
    ]
    shown = conversations(attempts, 3)
    heads = [line for line in shown.splitlines() if line.startswith("━━")]
    assert [head.split()[1] for head in heads] == ["lost", "broken", "half"]
    assert "reward 0, terminated, 2 steps, 6 of 9 tokens sampled" in heads[0]
    assert "environment_hang" in heads[1] and "open" not in shown
    for text in ("Be brief.", "sees kick", "kick", "run", "Over.", "No key."):
        assert f"    {text}" in shown.splitlines()


def test_no_character_reaches_the_terminal_that_it_could_obey():
    hostile = "\x1b]0;pwned\x07 \r\x08 \x9b2J \u202e \ud800 \u2028 tab\t"
    attempt = said(hostile, 0.0, hostile + "\n━━ forged", system=hostile, faults=(hostile,))
    shown = printable(conversations([attempt], 1))  # as echo prints it
    assert all(c.isprintable() or c == "\t" for line in shown.split("\n") for c in line)
    assert "\\x1b]0;pwned\\x07" in shown
    assert [line for line in shown.split("\n") if line.startswith("━━")] == shown.split("\n")[:1]
