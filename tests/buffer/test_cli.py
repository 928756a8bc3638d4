"""What is asked of `r3l-buffer` and cannot be: a line that says why, exit code 2, nothing made."""

from click.testing import CliRunner

from buffer import cli
from buffer.server.service import rules_of
from buffer.wire.curve_keys import ServiceKeys, generate, load
from r3l.errors import UserError
from r3l.run.config import RunConfig


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
    options += ["--keys", keys, "buffer.lease_s=2.5", "seed=11"]
    CliRunner().invoke(cli.main, ["serve", *map(str, options)])
    wanted = rules_of(RunConfig(seed=11, buffer={"map_gib": 0.25, "lease_s": 2.5}))
    assert given == [(1 << 28, wanted, "tcp://0.0.0.0:0", load(ServiceKeys, keys))]
