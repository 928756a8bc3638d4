"""The attempts of a store as session traces, with a data card."""

import json

import pytest
from msgspec.structs import replace

from buffer.tools.commands import export
from buffer.tools.trace_export import write_traces
from r3l.errors import UserError
from r3l.records import GroupPlan, Task
from r3l.records import done as r3l_done
from r3l.records.imported import imported_attempt
from r3l.run.config import load
from r3l.run.files.run_folder import RunFolder
from r3l.views.session_trace import read_sessions
from tests.buffer.fakes import refused, thought


def test_every_attempt_is_a_file_that_is_read_again(trained, tmp_path, capsys):
    trained.store.close()
    export.callback(trained.folder, "traces", tmp_path / "out")
    sessions = list(read_sessions(tmp_path / "out" / "sessions"))
    assert [session.reward for session in sessions] == [1.0, 1.0, sessions[-1].reward]
    said = capsys.readouterr().out
    assert said == f"3 sessions in {tmp_path / 'out' / 'sessions'}, and {tmp_path}/out/README.md\n"
    names = {path.stem for path in (tmp_path / "out" / "sessions").iterdir()}
    assert names == {session.header["id"] for session in sessions}
    for path in (tmp_path / "out" / "sessions").iterdir():
        first = json.loads(path.read_text().splitlines()[0])
        assert first["type"] == "session" and first["harness"] == "r3l"


def test_the_card_counts_what_is_exported_and_says_what_the_run_was(trained, tmp_path, capsys):
    trained.store.close()
    run = RunFolder(trained.folder.parent)
    has_run = run.store == trained.folder
    if has_run:
        run.write_settings(load(None, ["algorithm=grpo"]))
    export.callback(trained.folder, "traces", tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text()
    assert card.startswith("---\ntags: [agent-traces, r3l]\n---\n")
    assert "| sessions | 3 |" in card and "## Not checked" in card
    assert ("| algorithm | grpo |" in card) == has_run


def test_attempts_of_tokens_alone_are_left_out_and_counted(desk, tmp_path):
    def insert(**texts):
        made = imported_attempt([5, 6, 7, 8], [(2, 4)], 1.0, source="people", **texts)
        desk.insert(Task("q", "elsewhere", 0), [made])

    insert()
    with pytest.raises(UserError, match="nothing to export; left out 1: attempts of tokens with"):
        write_traces(desk.store, desk.folder, tmp_path / "none")
    insert(actions=["go"], observations=["where?", ""])
    said = write_traces(desk.store, desk.folder, tmp_path / "out")
    assert said.endswith("\nleft out 1: attempts of tokens without a text")
    assert len(list((tmp_path / "out" / "sessions").iterdir())) == 1
    card = (tmp_path / "out" / "README.md").read_text()
    assert "| left out: attempts of tokens without a text | 1 |" in card


def test_half_a_surrogate_pair_in_an_advice_is_replaced(desk, tasks, done, tmp_path):
    desk.add(tasks(1))
    group = desk.lease(plan=GroupPlan(2)).group_id
    why = thought(text='{"improvement_suggestion": "go \\ud800"}', of=0)
    retry = replace(done(reward=1.0).trajectory, slot=1, of=0, pivot=0, reflection=why.name)
    desk.put(group, [done(), r3l_done(retry), why])
    desk.store.close()
    export.callback(desk.folder, "traces", tmp_path / "out")
    *_, session = read_sessions(tmp_path / "out" / "sessions")
    assert session.header["advice"] == "go ?"


def test_a_store_without_attempts_and_a_folder_that_is_not_empty_are_refused(desk, tmp_path):
    desk.store.close()
    with pytest.raises(UserError, match="holds no attempt, so there is nothing to export"):
        export.callback(desk.folder, "traces", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(UserError, match="is not empty; choose a new folder"):
        export.callback(desk.folder, "traces", tmp_path)


@pytest.mark.parametrize("given", [["--as", "traces"], ["--out", "x"]])
def test_traces_need_a_folder_and_groups_have_none(desk, capsys, given):
    desk.store.close()
    refused(["export", str(desk.folder), *given], "give --as traces and --out FOLDER", capsys)
