"""Session traces as groups to insert: stored attempts that may be replayed and recalled."""

import json
import weakref

import pytest
from msgspec.structs import replace

from buffer.sampling import task_history
from buffer.storage.store import Store
from buffer.tools import store_reads
from buffer.tools.outside_traces import read_traces
from buffer.tools.verify import verify
from r3l.models.model_path import shipped_tokenizer
from r3l.records import Origin, Task
from r3l.records.imported import imported_chat
from r3l.rollout.chat import ChatFormat
from r3l.views import session_trace
from r3l.views.session_trace import Session
from tests.buffer.fakes import refused
from tests.buffer.tools.test_import_command import run


def session(reward=None, reply="go", role="assistant", **more):
    header = {"type": "session", "harness": "other", "id": "s"} | more
    header |= {} if reward is None else {"reward": reward}
    messages = [{"role": "user", "content": "where to?"}, {"role": role, "content": reply}]
    return [header, *({"type": "message", "message": message} for message in messages)]


def write(path, *sessions):
    path.write_text("".join(json.dumps(line) + "\n" for each in sessions for line in each))
    return path


def left_out(said):
    return sorted(line for line in said.err.splitlines() if line.startswith("left out"))


@pytest.fixture
def empty(tmp_path):
    with Store(tmp_path / "other" / "buffer", map_gib=0.25):
        pass
    return tmp_path / "other"


def rows(folder):
    with Store(folder / "buffer", read_only=True) as store, store.read() as txn:
        assert verify(store) == []
        return list(txn.rows())


def test_sessions_with_the_same_question_become_a_group(empty, tmp_path, capsys):
    file = write(tmp_path / "f.jsonl", session(1), session(0, "stay"), session(1, task="q2"))
    assert run(capsys, "import", empty, file, "--source", "people").out == "2 groups inserted\n"
    first, second = rows(empty)
    assert [reward for _, _, reward in first.attempts] == [1.0, 0.0]
    assert first.task_id.startswith("trace-") and second.task_id == "q2"
    assert first.source == "people"


def test_what_was_exported_as_traces_is_stored_again_with_its_tasks(
    trained, empty, tmp_path, capsys
):
    trained.store.close()
    run(capsys, "export", trained.folder, "--as", "traces", "--out", tmp_path / "out")
    run(capsys, "import", empty, tmp_path / "out" / "sessions")
    found, before = rows(empty), trained_rows(trained.folder)
    assert [(row.task_id, row.env, row.attempts) for row in found] == before
    assert {row.source for row in found} == {"r3l sessions"}


def test_a_retry_stays_a_retry_of_the_same_attempt_from_the_same_step(
    make_desk, empty, tmp_path, capsys
):
    """Else it would be a plain attempt: in the baselines of others, and trained on what it
    copied. Its file comes before that of its attempt, since file names are sorted as text."""
    desk, turns = make_desk(), [{"role": role, "content": role} for role in ("user", "assistant")]
    chat = ChatFormat(shipped_tokenizer())
    bases = [imported_chat(chat, turns * 2, 0.0, source="x") for _ in range(10)]
    origin = Origin("g9", 3, 1)
    attempts = [
        *bases,
        replace(bases[0], of=9, pivot=1, reward=1.0, reflection="why"),
        replace(bases[0], of=10, pivot=0, reward=0.5),
        replace(bases[0], pivot=1, origin=origin),
    ]
    made = [replace(each, slot=slot) for slot, each in enumerate(attempts)]
    desk.insert(Task("q", "elsewhere", 0), made, kind="restart 2")
    desk.store.close()
    run(capsys, "export", desk.folder, "--as", "traces", "--out", tmp_path / "out")
    said = run(capsys, "import", empty, tmp_path / "out" / "sessions")
    assert said.out == "1 groups inserted\n" and said.err.count("left out") == 0
    [row] = rows(empty)
    assert row.plan.kind == "restart 2"
    with Store(empty / "buffer", read_only=True) as store:
        found = store_reads.group(store, row.group_id).trajectories
    names = ("slot", "of", "pivot", "reward", "actions", "observations")
    for one, other in zip(found, made, strict=True):
        assert [getattr(one, n) for n in names] == [getattr(other, n) for n in names]
        assert one.token_ids.tolist() == other.token_ids.tolist() and not one.reflection
    assert [each.origin for each in found[-2:]] == [None, replace(origin, group_id="people/g9")]


def test_retries_that_would_become_plain_attempts_are_left_out_and_counted(empty, tmp_path, capsys):
    inside, own = {"pivot": 1, "steps": 1}, {"task": "q", "group": "g"}
    file = write(
        tmp_path / "f.jsonl",
        session(1, slot=0, **own),
        session(1, slot=1, of=7, **own),  # of none
        session(1, slot=2, of=3, **own), session(1, slot=3, of=2, **own),  # of each other
        session(1, slot=4, **own), session(1, slot=4, **own), session(1, slot=5, of=4, **own),
        session(1, slot=6, of=0, pivot=1, **own),  # an agent's
        session(1, slot=8, of=6, pivot=0, **own),
        session(1, slot=9, **own, **inside),
    )  # fmt: skip
    said = run(capsys, "import", empty, file)
    assert [reward for _, _, reward in rows(empty)[0].attempts] == [1.0] * 3
    assert left_out(said) == [
        "left out 1: attempts from inside another one, which their header does not name",
        "left out 1: attempts from inside another one, whose replies are not their steps",
        "left out 5: retries whose attempt is not among the sessions",
    ]


def test_only_one_group_is_held_in_memory(tmp_path):
    """Else a large folder would not fit. The sessions of a group may be anywhere."""
    order = [session(1, f"{n}", task=f"q{n % 5}", group="g") for n in range(20)]
    file = write(tmp_path / "f.jsonl", *order)
    held, most = weakref.WeakSet(), 0

    class Counted(Session):
        def __init__(self, *given):
            nonlocal most
            super().__init__(*given)
            held.add(self)
            most = max(most, len(held))

        __hash__ = object.__hash__

    chat = ChatFormat(shipped_tokenizer())
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(session_trace, "Session", Counted)
        groups = [len(each.results) for each in read_traces(file, "x", lambda: chat)]
    assert groups == [4] * 5 and 4 <= most <= 10


def trained_rows(folder):
    with Store(folder, read_only=True) as store, store.read() as txn:
        return [(row.task_id, row.env, row.attempts) for row in txn.rows() if row.attempts]


def test_imported_attempts_are_recalled_if_the_run_wants_them(make_desk, tasks, tmp_path, capsys):
    """The task is the run's own, so that an attempt of it may join a group of failures."""
    [task] = tasks(1)
    desk = make_desk(groups_per_step=1, algorithm={"name": "r3", "group_size": 2},
                     recall_imported=True)  # fmt: skip
    desk.add([task])
    desk.store.close()
    plain = {"task_id": task.task_id, "env": task.env, "seed": task.seed, "options": task.options}
    run(capsys, "import", desk.folder, write(tmp_path / "f.jsonl", session(1, task=plain)))
    with Store(desk.folder, read_only=True) as store, store.read() as txn:
        assert list(task_history.attempts(txn, task.task_id)) == []
        [found] = task_history.attempts(txn, task.task_id, imported=True)
        assert (found.reward, found.version) == (1.0, -1)
        of = (found.group_id, found.slot)
        assert task_history.holds(txn, task.task_id, *of, imported=True)
        assert not task_history.holds(txn, task.task_id, *of)


def test_what_is_no_stored_attempt_is_left_out_and_counted(empty, tmp_path, capsys):
    call = {"id": "c", "function": {"name": "f", "arguments": "{}"}}
    tools = session(1)
    tools[2]["message"]["toolCalls"] = [call]
    thinks = session(1)
    thinks[2]["message"]["reasoningContent"] = "hm"
    silent, unasked = session(1, ""), session(1)
    unasked[1]["message"]["content"] = ""
    others = (tools, thinks, silent, unasked, session(1, purpose="eval"),
              session(1, conversation=1))  # fmt: skip
    said = run(capsys, "import", empty, write(tmp_path / "f.jsonl", session(1), *others))
    assert said.out == "1 groups inserted\n"
    assert left_out(said) == [
        "left out 1: evaluation",
        "left out 1: further conversations of agents",
        "left out 1: sessions whose prompts have no text",
        "left out 1: sessions whose replies have no text",
        "left out 1: sessions with reasoning apart from its text, which only warmup reads",
        "left out 1: sessions with tool calls, which only warmup reads",
    ]


def test_a_reward_is_given_to_sessions_that_name_none(empty, tmp_path, capsys):
    file = write(tmp_path / "f.jsonl", session(), session(0.5))
    refused(["import", str(empty), str(file)], "names no reward; give the reward of such", capsys)
    assert rows(empty) == []
    run(capsys, "import", empty, file, "--reward", "1")
    [row] = rows(empty)
    assert [reward for _, _, reward in row.attempts] == [1.0, 0.5]
    other = tmp_path / "g"
    other.write_text(json.dumps({"task": "q", "attempts": []}))
    given = ["import", str(empty), str(other), "--reward", "1"]
    refused(given, "is only for session traces; leave it out", capsys)


@pytest.mark.parametrize(
    ("odd", "rule"),
    [
        (session(1, role="critic"), "role 'critic': must be one of user, assistant, system, tool"),
        (session(1, task=5), "line 4: task 5: must be an id or an object"),
        (session(1, task={"id": "q"}), "line 4: Task: "),
        (session(1, role="user"), "line 4: messages with the roles"),
        (session(1, of="first"), "line 4: of 'first': must be a whole number"),
        (session(1, "\ud800"), "line 6: holds half a surrogate pair"),
        (session(1, slot=1, of=0, pivot=1, steps=1), "line 4: pivot 1: must be from -1 to 0"),
        (session(1, kind=5, task="q"), "line 4: kind 5: must be text"),
        (session(1, origin={"step": 0}), "line 4: Origin: "),
    ],
)
def test_a_bad_session_is_named_and_nothing_is_inserted(empty, tmp_path, capsys, odd, rule):
    file = write(tmp_path / "f.jsonl", session(1, slot=0), odd)
    refused(["import", str(empty), str(file)], rule, capsys)
    assert rows(empty) == []
