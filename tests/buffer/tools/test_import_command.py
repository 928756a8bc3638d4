"""`r3l-buffer import`: what export printed comes back, all or nothing; a refusal is a line."""

import json
import sys

import pytest

from buffer import BufferClient, cli
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l import codec
from r3l.records import Group, Task
from r3l.records.imported import imported_attempt
from tests.buffer.fakes import refused

TASK = Task("q", "elsewhere", 0, {"prompt": "p"})
ATTEMPT = {"token_ids": [1, 2, 3], "spans": [[1, 3]], "reward": 1.0}
LINE = {"task": "q", "attempts": [ATTEMPT, ATTEMPT | {"reward": 0.0}]}


def run(capsys, *arguments):
    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(sys, "argv", ["r3l-buffer", *map(str, arguments)])
        cli.main()
    said = capsys.readouterr()
    assert not ended.value.code, said.err
    return said


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def groups_of(folder):
    with Store(folder, read_only=True) as store, store.read() as txn:
        assert verify(store) == []
        return [(row, txn.record(row.group_id)) for row in txn.rows()]


@pytest.fixture
def empty(tmp_path):
    with Store(tmp_path / "other" / "buffer", map_gib=0.25):
        pass
    return tmp_path / "other"


def test_insert_draw_train_export_import_keeps_the_bytes_of_every_attempt(
    make_desk, empty, tmp_path, capsys
):
    desk = make_desk(max_staleness=3)
    desk.insert(TASK, [imported_attempt([1, 2, 3], [(1, 3)], r, source="people") for r in (0, 1)])
    desk.insert(
        TASK,
        [imported_attempt([1, 2], [(1, 2)], 0.3, source="x", logprobs=[-0.1], temperature=0.7)],
    )
    desk.commit(desk.draw(2).draw_id, 1)
    desk.store.close()
    file = tmp_path / "out.jsonl"
    file.write_text(run(capsys, "export", desk.folder).out)
    assert run(capsys, "import", empty, file).out == "2 groups inserted\n"

    def attempts(folder):
        return [
            [codec.encode(r) for r in codec.decode(Group, data).results]
            for _, data in groups_of(folder)
        ]

    assert attempts(empty / "buffer") == attempts(desk.folder)
    assert [row.source for row, _ in groups_of(empty / "buffer")] == ["people", "x"]


def test_a_running_service_takes_them_too(serve, tmp_path, capsys):
    served = serve()
    file = write(tmp_path / "own.jsonl", LINE, LINE)
    assert run(capsys, "import", served.endpoint, file).out == "2 groups inserted\n"
    with BufferClient(served.endpoint) as client:
        assert [g.source for g in client.query()] == ["own.jsonl"] * 2
    refused(["import", str(served.folder), str(file)], "is already served by process", capsys)


def test_what_is_left_out_is_counted_by_reason(empty, tmp_path, capsys):
    (empty / "config.yaml").write_text("algorithm: {name: dapo, group_size: 2}\n")
    same = {"task": "q", "attempts": [ATTEMPT, ATTEMPT]}
    said = run(capsys, "import", empty, write(tmp_path / "f", same, LINE, same))
    assert said.out == "1 groups inserted\n"
    assert said.err == "left out 2: refused by the run's algorithm (no_contrast)\n"


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        (LINE | {"attempts": [ATTEMPT | {"token_ids": [1, 2, 10**6]}]}, "holds token 1000000"),
        (LINE | {"attempts": [ATTEMPT | {"logprobs": [-1, 5]}]}, "above 0"),
        (LINE | {"task": {"task_id": "q", "options": {"prompt": "other"}}}, "exists with another"),
        (LINE | {"source": ""}, "has no source"),
    ],
)
def test_a_refused_line_is_named_and_nothing_is_inserted(empty, tmp_path, capsys, line, rule):
    file = write(tmp_path / "f", LINE, line)
    refused(["import", str(empty), str(file)], rule, capsys)
    assert groups_of(empty / "buffer") == []


def test_a_file_without_lines_and_a_place_without_a_store_are_refused(empty, tmp_path, capsys):
    refused(["import", str(empty), str(write(tmp_path / "f"))], "holds no line", capsys)
    refused(["import", str(tmp_path / "x"), str(tmp_path / "f")], "no store there", capsys)


def test_messages_are_written_by_the_chat_of_the_runs_model(empty, tmp_path, capsys):
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "go"}]
    file = write(tmp_path / "f", {"task": "q", "attempts": [{"messages": messages, "reward": 1}]})
    run(capsys, "import", empty, file)
    [(row, _)] = groups_of(empty / "buffer")
    assert row.done == 1 and row.source == "f"
