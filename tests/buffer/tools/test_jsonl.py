"""Records as lines of JSON: bit by bit, and read with nothing but json."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from buffer.tools import archive, jsonl
from r3l.errors import UserError
from r3l.records import AuxSample, Trajectory
from tests.buffer.fakes import finished


def test_json_lines_are_read_with_nothing_but_json(filled, tmp_path):
    archive.export(filled.store, tmp_path / "out")
    lines = (tmp_path / "out" / "groups.jsonl").read_text().splitlines()
    groups = [json.loads(line) for line in lines]
    assert [group["state"] for group in groups] == ["trained", "trained", "expired", "filling"]
    trajectory = groups[0]["results"][0]["trajectory"]
    assert trajectory["token_ids"] == list(range(8)) and trajectory["reward"] == 0.1 + 0.2


LINES = {
    "another type": '{"purpose": "train", "tag": 5}',
    "too large a number": '{"kind": "reflect", "token_ids": [1099511627776], "response_mask": []}',
    "no number": '{"kind": "reflect", "token_ids": ["0x0"], "response_mask": [true]}',
    "a list": "[]",
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_that_is_not_a_record_is_named(tmp_path, line):
    (tmp_path / "x.jsonl").write_text(LINES[line] + "\n")
    for kind in (archive.TaskRow, AuxSample):
        with pytest.raises(UserError, match="line 1"):
            list(jsonl.read(tmp_path / "x.jsonl", kind))


def test_nan_and_infinity_come_back_bit_by_bit(tmp_path):
    bits = np.array([0x7FC01234, 0xFF800000, 0x80000000, 1, 0x3F800000], np.uint32)
    written = replace(finished(length=5).trajectory, logprobs=bits.view(np.float32))
    jsonl.write(tmp_path / "x.jsonl", [written])
    line = json.loads((tmp_path / "x.jsonl").read_text(), parse_constant=pytest.fail)
    assert line["logprobs"][:2] == ["0x7fc01234", "0xff800000"] and line["logprobs"][4] == 1.0
    (read,) = jsonl.read(tmp_path / "x.jsonl", Trajectory)
    assert read.logprobs.tobytes() == bits.tobytes()
    for text in ("0x1000000000", "nan", "-0x1"):
        line["logprobs"][0] = text
        (tmp_path / "x.jsonl").write_text(json.dumps(line))
        with pytest.raises(UserError, match="line 1"):
            list(jsonl.read(tmp_path / "x.jsonl", Trajectory))
