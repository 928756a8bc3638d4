"""`r3l-buffer import`: what export printed comes back, all or nothing; a refusal is a line."""

import json
import sys

import pytest
from msgspec.structs import replace

import r3l
from buffer import BufferClient, cli
from buffer.storage.store import Store
from buffer.tools.verify import verify
from r3l import codec
from r3l.records import Group, SlotResult, Task
from r3l.records.imported import imported_attempt
from tests.buffer.fakes import refused, thought

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


def test_the_whole_circle_through_a_service_and_a_trainer_keeps_the_bytes(serve, tmp_path, capsys):
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=2", "algorithm=grpo")
    algorithm, trainer = r3l.GRPO(group_size=2, kl_coef=0.0), r3l.Trainer("builtin", lr=1e-3)
    known = imported_attempt([5, 6, 7, 8], [(2, 4)], 1.0, source="x", logprobs=[-0.5, -9.0])
    silent = [imported_attempt([5, 6, 7, n], [(2, 4)], n % 2, source="people") for n in (8, 9)]
    with BufferClient(served.endpoint, timeout_s=60) as client:
        client.insert(TASK, silent, source="people")
        lost = replace(known, reward=0.0)
        client.insert(
            TASK, [known, lost, SlotResult(0, "failed", cause="env")], source="x",
            reflections=[thought()], kind="by hand",
        )  # fmt: skip
        draw = client.draw(2, version=0)
        before = trainer.weights()
        result = trainer.step(algorithm.rows(draw), algorithm.loss)
        assert result.applied and any(not v.equal(before[k]) for k, v in trainer.weights().items())
        client.commit(draw.draw_id, step=1, version=1)

    def exported(folder):
        file = tmp_path / f"{folder.parent.name}.jsonl"
        file.write_text(run(capsys, "export", folder).out)
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        return file, [json.dumps(line | {"times": {}}) for line in lines]

    file, first = exported(served.folder)
    assert [len(json.loads(line)["results"]) for line in first] == [2, 3]
    assert all('"trained"' in line for line in first)
    for name in ("second", "third"):
        with Store(tmp_path / name / "buffer", map_gib=0.25):
            pass
        assert run(capsys, "import", tmp_path / name, file).out == "2 groups inserted\n"
        file, again = exported(tmp_path / name / "buffer")
        assert again == first


def test_a_running_service_takes_them_too(serve, tmp_path, capsys):
    served = serve()
    bad = write(tmp_path / "bad.jsonl", LINE, {"task": "q"})
    refused(["import", served.endpoint, str(bad)], "line 2: the line: lacks attempts", capsys)
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
        (LINE | {"source": ""}, "must be non-empty text"),
        ({"task": "q"}, "line 2: the line: lacks attempts"),
    ],
)
def test_a_refused_line_is_named_and_nothing_is_inserted(empty, tmp_path, capsys, line, rule):
    file = write(tmp_path / "f", LINE, line)
    refused(["import", str(empty), str(file)], rule, capsys)
    assert groups_of(empty / "buffer") == []


def test_a_file_without_lines_and_a_place_without_a_store_are_refused(empty, tmp_path, capsys):
    refused(["import", str(empty), str(write(tmp_path / "f"))], "holds no line", capsys)
    refused(["import", str(tmp_path / "x"), str(tmp_path / "f")], "no store there", capsys)
    hint = (
        f"r3l-buffer serve --store {tmp_path / 'x'} --bind tcp://127.0.0.1:5555 makes an empty one"
    )
    refused(["import", str(tmp_path / "x"), str(tmp_path / "f")], hint, capsys)


def test_messages_are_written_by_the_chat_of_the_runs_model(empty, tmp_path, capsys):
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "go"}]
    file = write(tmp_path / "f", {"task": "q", "attempts": [{"messages": messages, "reward": 1}]})
    run(capsys, "import", empty, file)
    [(row, _)] = groups_of(empty / "buffer")
    assert row.done == 1 and row.source == "f"


def test_a_store_without_settings_is_said_to_be_checked_against_the_shipped_model(
    empty, tmp_path, capsys
):
    said = run(capsys, "import", empty, write(tmp_path / "f", LINE))
    assert "so the tokens were checked against those of the shipped model; name" in said.err
    (empty / "config.yaml").write_text("algorithm: grpo\n")
    assert not run(capsys, "import", empty, tmp_path / "f").err
