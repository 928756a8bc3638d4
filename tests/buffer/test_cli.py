"""What is asked of `r3l-buffer` and cannot be: a line that says why, exit code 2, nothing made."""

import pytest
from click.testing import CliRunner

from buffer import cli
from buffer.wire.access import check_connections
from buffer.wire.curve_keys import ServiceKeys, generate, load
from r3l.config import RunConfig
from r3l.errors import UserError
from tests.buffer.fakes import refused


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        (["buffer.map_gib=.nan"], "config buffer.map_gib: must be a finite"),
        (["buffer.lease_s=0"], "buffer.lease_s: must be at least 0.001"),
        (["buffer.straggler_s=.inf"], "buffer.straggler_s: must be a finite number"),
        (["learner.groups_per_step=4097"], "learner.groups_per_step: must be at most"),
        (["buffer.min_base=0"], "buffer.min_base: "),
        (["seed=-1"], "seed: "),
        (["buffer.max_staleness=1.5"], "buffer.max_staleness: "),
        (["buffer.retention.gib=100"], "raise map_gib or lower retention.gib"),
        (["buffer.retention.hours=-1"], "buffer.retention.hours: "),
        (["buffer.retention.days=1"], "buffer.retention.days: unknown; this section knows groups"),
        (["buffer.sampler=best"], "'best': unknown; choose one of fifo"),
        (["buffer.sampler.alpha=11"], "buffer.sampler.alpha: must be at most"),
        (["lease_s"], "must look like section.key=value"),
        (["--config", "nowhere.yaml"], "config nowhere.yaml: cannot be read"),
        (["--connections", "0"], "0 is not in the range"),
        (["--bind", "tcp://127.0.0.1:65536"], "to 65535"),
        (["--bind", "tcp://127.0.0.1"], "PORT"),
        (["--bind", "nonsense"], "PORT"),
    ],
)
def test_settings_outside_their_range_are_refused_before_anything_is_created(
    arguments, rule, tmp_path, capsys
):
    place = ["--store", str(tmp_path / "store"), "--bind", "tcp://127.0.0.1:0"]
    refused(["serve", *place, *arguments], rule, capsys)
    assert not (tmp_path / "store").exists()


def test_file_and_overrides_reach_the_service(tmp_path, monkeypatch):
    given = []

    def service(store, *others):
        given.append((store.map_bytes, *others))
        raise UserError("enough")

    monkeypatch.setattr(cli, "Service", service)
    keys, *_ = generate(tmp_path / "keys")
    config = tmp_path / "config.yaml"
    config.write_text("buffer: {map_gib: 0.25, lease_s: 1.5}")
    options = ["--config", config, "--store", tmp_path / "store", "--bind", "tcp://0.0.0.0:0"]
    options += ["--keys", keys, "--connections", 12, "buffer.lease_s=2.5", "seed=11"]
    CliRunner().invoke(cli.commands, ["serve", *map(str, options)])
    wanted = RunConfig(seed=11, buffer={"map_gib": 0.25, "lease_s": 2.5})
    assert given == [(1 << 28, wanted, "tcp://0.0.0.0:0", load(ServiceKeys, keys), 12)]


def test_more_connections_than_the_system_allows_are_refused_at_once():
    with pytest.raises(UserError, match="open files"):
        check_connections(1 << 40)
