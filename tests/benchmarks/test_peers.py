"""The comparison with TRL: what is counted, and that both get the same work."""

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from transformers import AutoTokenizer

from benchmarks import peers, peers_floor
from benchmarks.peers import Measured
from r3l.run.config import load


def test_both_get_prompts_of_64_tokens_from_the_same_words(tmp_path: Path) -> None:
    peers.write_work(tmp_path, "1")
    asked = json.loads((tmp_path / "prompts.json").read_text())
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    texts = [tokenizer.apply_chat_template(one, add_generation_prompt=True) for one in asked[:50]]
    assert {len(text["input_ids"]) for text in texts} == {64}
    assert len({str(one) for one in asked[:50]}) == 50
    env = peers.make(f"{tmp_path / 'words.py'}:Words")
    assert env.reset(seed=7)[0] == asked[7][1]["content"]


def test_the_first_steps_are_left_out(tmp_path: Path) -> None:
    lines = [{"kind": "eval", "time": 0.0}]
    program = "import json, sys, time\n"
    program += "for step in range(6):\n"
    program += "    time.sleep(0.3); file = open(sys.argv[1], 'a')\n"
    program += "    print(json.dumps({'kind': 'step', 'time': 100.0 * 2**step}), file=file)\n"
    program += "    file.close()\n"
    file = tmp_path / "steps.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    command = [sys.executable, "-c", program, str(file)]
    seen = peers.measure(command, file, {}, tmp_path / "log")
    assert seen.steps_s == [400.0, 800.0, 1600.0]  # steps 4 to 6
    assert seen.gib > 0 and sum(seen.cpu_s.values()) >= 0


def test_a_run_that_fails_says_what_it_said(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no such model')"]
    with pytest.raises(Exception, match="no such model"):
        peers.measure(command, tmp_path / "none", {}, tmp_path / "log")


def test_the_table_has_medians_over_all_runs() -> None:
    runs = [
        Measured(10.0, [1.0, 2.0], {"learner": 2.0, "engine": 1.0}, 0.5),
        Measured(20.0, [9.0], {"learner": 5.0}, 1.5),
    ]
    assert peers.table("12", {"r3l": runs}) == ["| 12 M | r3l | 2.00 | 4.00 | 15.0 | 1.00 |"]


def test_the_table_can_be_made_again_from_the_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Measured(10.0, [1.0, 2.0], {"learner": 2.0, "engine": 1.0}, 0.5)
    monkeypatch.setattr(peers, "install", lambda: None)
    monkeypatch.setattr(peers, "write_work", lambda folder, size: None)
    monkeypatch.setattr(peers, "measure", lambda *_: run)
    monkeypatch.setattr(peers, "floor", lambda folder, work: (1.0, 0.5, 0.4))
    monkeypatch.setattr(peers, "profile", lambda runs, file: "spans")
    monkeypatch.setattr(peers.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(Path, "glob", lambda self, pattern: [self])
    words = ["--lines", str(tmp_path / "peers.jsonl")]
    measured = CliRunner().invoke(peers.main, [*words, "--sizes", "1,12", "--rounds", "2"])
    lines = [json.loads(text) for text in (tmp_path / "peers.jsonl").read_text().splitlines()]
    assert [line["peer"] for line in lines] == ["r3l", "TRL", "r3l", "TRL", "floor"] * 2
    assert lines[0]["steps_s"] == [1.0, 2.0] and lines[0]["prompts"] == 12
    rows = [line for line in measured.stdout.splitlines() if line.startswith("| ")]
    assert rows[1:4] == [
        "| 1 M | r3l | 1.50 | 3.00 | 10.0 | 0.50 |",
        "| 1 M | TRL | 1.50 | 3.00 | 10.0 | 0.50 |",
        "| 1 M | floor | 0.75 | | | |",
    ]
    read = CliRunner().invoke(peers.main, [*words, "--read"]).stdout.splitlines()
    assert [line for line in read if line.startswith("| ")] == rows
    assert read[0].startswith("at 20") and read[0].endswith("steps 20, bf16 False")


def test_the_profile_tells_the_cpu_time_of_every_process_and_the_spans_of_a_step(
    tmp_path: Path,
) -> None:
    line = {"kind": "step", "learner/step_s": 2.0, "actor/idle_share": 0.25}
    file = tmp_path / "progress.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for _ in range(5)))
    told = peers.profile([Measured(1.0, [1.0], {"learner": 2.0, "engine": 1.5}, 1.0)], file)
    assert told.startswith("CPU s/step: learner 2.00, engine 1.50, actor 0.00, buffer 0.00")
    assert "learner/step_s 2.00" in told and "actor/idle_share 0.25" in told


def test_the_floor_trains_on_what_was_sampled() -> None:
    attempts = [
        {"prompt": [5, 6], "response": [7], "logprobs": [-0.5]},
        {"prompt": [5], "response": [8, 9, 4], "logprobs": [-1.0, -2.0, -3.0]},
    ]
    first, second = peers_floor.rows_of(attempts)
    assert first.mask.tolist() == [False, False, True]
    assert set(first.advantages) == {1.0} and set(second.advantages) == {-1.0}
    assert second.token_ids.tolist() == [5, 8, 9, 4]
    assert second.old_logprobs.tolist() == [0.0, -1.0, -2.0, -3.0]
    assert {*first.weights, *second.weights} == {0.25}


def test_a_bare_loop_trains_on_the_same_tokens(tmp_path: Path) -> None:
    prompt = [5, 6, 7]
    group = [{"prompt": prompt, "response": [8, 9], "logprobs": [-1.0, -1.0]} for _ in range(2)]
    peers.write_model(tmp_path / "model", 16, 1, 8)
    (tmp_path / "samples.json").write_text(json.dumps([group] * 3))
    spent = peers_floor.train_bare(tmp_path, load(None, ["learner.compute=bfloat16"]))
    assert len(spent) == 3 and min(spent) > 0
