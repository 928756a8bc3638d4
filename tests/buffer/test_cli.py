"""What is asked of `r3l-buffer` and cannot be: a line that says why, exit code 2, nothing made."""

import sys

import pytest
from click.testing import CliRunner

from buffer import cli
from buffer.storage.store import Store
from buffer.wire.curve_keys import ServiceKeys, generate, load
from r3l import codec
from r3l.config import RunConfig
from r3l.errors import UserError


def _refused(arguments, rule, capsys):
    """`r3l-buffer` ends with exit code 2 and one line of its own, or click's with its usage."""
    with pytest.MonkeyPatch.context() as patched, pytest.raises(SystemExit) as ended:
        patched.setattr(sys, "argv", ["r3l-buffer", *arguments])
        cli.main()
    said = capsys.readouterr()
    last = said.err.splitlines()[-1]
    assert ended.value.code == 2 and not said.out, said
    assert last.startswith(("r3l-buffer: ", "Error: ")) and rule in last


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["buffer.map_gib=.nan"], "config buffer.map_gib: Input should be a finite"),
        (["buffer.lease_s=0"], "buffer.lease_s: Input should be greater than or equal to 0.001"),
        (["buffer.straggler_s=.inf"], "buffer.straggler_s: Input should be a finite number"),
        (["learner.groups_per_step=4097"], "learner.groups_per_step: Input should be less than"),
        (["buffer.min_base=0"], "buffer.min_base: "),
        (["seed=-1"], "seed: "),
        (["buffer.max_staleness=1.5"], "buffer.max_staleness: "),
        (["buffer.retention.gib=100"], "raise map_gib or lower retention.gib"),
        (["buffer.retention.hours=-1"], "buffer.retention.hours: "),
        (["buffer.retention.days=1"], "buffer.retention.days: unknown; this section knows groups"),
        (["buffer.sampler=best"], "'best': unknown; choose one of fifo"),
        (["buffer.sampler.alpha=11"], "buffer.sampler.alpha: Input should be less than or equal"),
        (["lease_s"], "must look like section.key=value"),
        (["--config", "nowhere.yaml"], "config nowhere.yaml: cannot be read"),
        (["--connections", "0"], "0 is not in the range"),
        (["--bind", "tcp://127.0.0.1:65536"], "to 65535"),
        (["--bind", "tcp://127.0.0.1"], "PORT"),
        (["--bind", "nonsense"], "PORT"),
    ],
)
def test_settings_outside_of_their_range_are_refused_before_anything_is_made(
    arguments, rule, tmp_path, capsys
):
    place = ["--store", str(tmp_path / "store"), "--bind", "tcp://127.0.0.1:0"]
    _refused(["serve", *place, *arguments], rule, capsys)
    assert not (tmp_path / "store").exists()


def test_limits_of_an_eviction_are_refused_in_one_line(tmp_path, capsys):
    Store(tmp_path / "store", map_gib=0.1).close()
    for limits, rule in (
        (["groups=-1"], "groups: Input should be greater than or equal to 0"),
        (["bytes=9"], "bytes: unknown; this section knows groups, gib, hours, versions, grace_s"),
        (["grace_s=9"], "give a limit: groups=, gib=, hours= or versions="),
        ([], "Missing argument 'LIMITS...'"),
    ):
        _refused(["evict", "--store", str(tmp_path / "store"), *limits], rule, capsys)


def test_wrong_arguments_of_a_command_are_refused_in_one_line(tmp_path, capsys):
    folder = tmp_path / "store"
    Store(folder, map_gib=0.1).close()
    at, file = ["--store", str(folder)], tmp_path / "file"
    file.write_text("")
    for arguments, rule in (
        (["stats", "--endpoint", "nonsense"], "buffer 'nonsense': must look like tcp://HOST:PORT"),
        (["show", *at, ""], "no group ''"),
        (["show", *at, "g7"], "no group 'g7'"),
        (["replay", *at, "7"], "step 7 is not in the ledger"),
        (["replay", *at, "9" * 23], "is not in the ledger"),
        (["compact", *at, "."], "by its name"),
        (["compact", *at, str(file)], "is not empty; choose a new folder"),
        (["keygen", str(file)], "cannot be created (File exists)"),
        (["keygen", str(file / "keys")], "cannot be created (Not a directory)"),
    ):
        _refused(arguments, rule, capsys)
    store = Store(folder, map_gib=0.1)
    with store.write() as txn:
        txn.put("sys", b"schema", codec.pack({"schema": 99}))
    store.close()
    _refused(["ls", *at], "has schema 99, this r3l reads", capsys)


def test_file_and_overrides_reach_the_service(tmp_path, monkeypatch):
    given = []

    def service(store, *others):
        given.append((store.map_bytes, *others))
        raise UserError("enough")

    monkeypatch.setattr(cli, "Service", service)
    keys, _ = generate(tmp_path / "keys")
    config = tmp_path / "config.yaml"
    config.write_text("buffer: {map_gib: 0.25, lease_s: 1.5}")
    options = ["--config", config, "--store", tmp_path / "store", "--bind", "tcp://0.0.0.0:0"]
    options += ["--keys", keys, "--connections", 12, "buffer.lease_s=2.5", "seed=11"]
    CliRunner().invoke(cli.commands, ["serve", *map(str, options)])
    wanted = RunConfig(seed=11, buffer={"map_gib": 0.25, "lease_s": 2.5})
    assert given == [(1 << 28, wanted, "tcp://0.0.0.0:0", load(ServiceKeys, keys), 12)]
