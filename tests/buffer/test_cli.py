"""What is asked of `r3l-buffer` and cannot be: a line that says why, exit code 2, nothing made."""

import sys

import click
import pytest
from click.testing import CliRunner

from buffer import cli
from buffer.groups.samplers import Sampling
from buffer.groups.unit_of_work import Settings
from buffer.storage.rows import Retention
from buffer.storage.store import Store
from buffer.wire.curve_keys import ServiceKeys, generate, load
from r3l import codec
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
    ("option", "value", "rule"),
    [
        ("--map-gib", "nan", "0.0005 to 131072.0"),
        ("--map-gib", "inf", "0.0005 to 131072.0"),
        ("--lease-s", "nan", "0.001 to"),
        ("--lease-s", "0", "0.001 to"),
        ("--straggler-s", "inf", "0 to 1000000000.0"),
        ("--draw-s", "nan", "0 to"),
        ("--groups-per-step", "4097", "1 to 4096"),
        ("--min-base", "0", "1 to 1024"),
        ("--seed", "-1", "0 to"),
        ("--max-staleness", "1e3", "not a valid integer"),
        ("--retain-gib", "inf", "must be 0 to 1e+09"),
        ("--retain-hours", "nan", "must be 0 to"),
        ("--bind", "tcp://127.0.0.1:65536", "to 65535"),
        ("--bind", "tcp://127.0.0.1", "PORT"),
        ("--bind", "nonsense", "PORT"),
    ],
)
def test_settings_outside_of_their_range_are_refused_before_anything_is_made(
    option, value, rule, tmp_path, capsys
):
    arguments = ["--store", str(tmp_path / "store"), "--bind", "tcp://127.0.0.1:0", option, value]
    _refused(["serve", *arguments], rule, capsys)
    assert not (tmp_path / "store").exists()


def test_what_is_not_there_or_cannot_be_is_refused_in_one_line(tmp_path, capsys):
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
        (["keygen", str(file)], "cannot be made a folder (File exists)"),
        (["keygen", str(file / "keys")], "cannot be made a folder (Not a directory)"),
    ):
        _refused(arguments, rule, capsys)
    store = Store(folder, map_gib=0.1)
    with store.write() as txn:
        txn.put("sys", b"schema", codec.pack({"schema": 99}))
    store.close()
    _refused(["ls", *at], "has schema 99, this r3l reads", capsys)


def test_every_option_of_serve_reaches_the_service(tmp_path, monkeypatch):
    told = []

    def service(store, settings, *others):
        told.append((store.map_bytes, settings, *others))
        raise UserError("enough")

    monkeypatch.setattr(cli, "Service", service)
    monkeypatch.setattr(cli, "_keep_freed_memory", lambda: None)
    keys, _ = generate(tmp_path / "keys")
    options = {
        "store": tmp_path / "store", "bind": "tcp://0.0.0.0:0", "keys": keys, "map-gib": 0.25,
        "lease-s": 1.5, "max-staleness": 2, "groups-per-step": 3, "min-base": 5, "straggler-s": 7.5,
        "draw-s": 8.5, "sampler": "prioritised", "reuse": 9, "cooldown": 10, "alpha": 0.25,
        "beta": 0.5, "decay": 0.75, "seed": 11, "connections": 12, "retain-groups": 13,
        "retain-gib": 0.125, "retain-hours": 2.0, "retain-versions": 14, "retain-grace-s": 15.5,
    }  # fmt: skip
    assert {f"--{name}" for name in options} | {"--help"} == {
        name for option in cli.serve.get_params(click.Context(cli.serve)) for name in option.opts
    }
    arguments = [str(one) for name, value in options.items() for one in (f"--{name}", value)]
    CliRunner().invoke(cli.commands, ["serve", *arguments])
    settings = Settings(
        lease_s=1.5, max_staleness=2, per_step=3, min_base=5, straggler_s=7.5, draw_s=8.5, seed=11,
        sampling=Sampling("prioritised", reuse=9, cooldown=10, alpha=0.25, beta=0.5, decay=0.75),
        retention=Retention(13, 1 << 27, 7200.0, 14, 15.5),
    )  # fmt: skip
    assert told == [(1 << 28, settings, "tcp://0.0.0.0:0", load(ServiceKeys, keys), 12)]
