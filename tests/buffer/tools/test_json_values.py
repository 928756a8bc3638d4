"""Records as JSON: read with nothing but json, and every number is kept."""

import json

import numpy as np
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from buffer import cli
from buffer.tools.json_values import plain
from tests.buffer.fakes import finished


def test_exported_groups_are_read_with_nothing_but_json(filled):
    command = ["export", str(filled.folder)]
    filled.store.close()
    lines = CliRunner().invoke(cli.main, command, catch_exceptions=False).output.splitlines()
    filled.open()
    groups = [json.loads(line) for line in lines]
    assert [group["state"] for group in groups] == ["trained", "trained", "expired", "filling"]
    trajectory = groups[0]["results"][0]["trajectory"]
    assert trajectory["token_ids"] == list(range(8)) and trajectory["reward"] == 0.1 + 0.2


def test_numbers_that_json_lacks_are_written_as_their_bits():
    bits = np.array([0x7FC01234, 0xFF800000, 0x80000000, 1, 0x3F800000], np.uint32)
    written = replace(finished(length=5).trajectory, logprobs=bits.view(np.float32))
    line = json.loads(json.dumps(plain(written)), parse_constant=pytest.fail)
    assert line["logprobs"][:2] == ["0x7fc01234", "0xff800000"]
    assert np.array(line["logprobs"][2:], np.float32).tobytes() == bits[2:].tobytes()
