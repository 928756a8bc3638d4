"""Weights & Biases, offline: what its file holds."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.metrics.loggers.logger import LoggerContext
from learner.metrics.loggers.wandb_logger import WandbLogger
from r3l.errors import UserError
from r3l.run.config import load
from tests.buffer.viewer.chromium import until

BLOCK, FULL, LAST = 1 << 15, 1, 4


@pytest.fixture(autouse=True)
def _nobody_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("WANDB_MODE", "WANDB_API_KEY", "WANDB_BASE_URL", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def test_a_login_is_needed_unless_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=r"log wandb: .*api\.wandb\.ai"):
        WandbLogger.check("")
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password key\n")
    WandbLogger.check("")
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org")
    with pytest.raises(UserError, match=r"log wandb: .*wandb\.example\.org"):
        WandbLogger.check("")
    monkeypatch.setenv("WANDB_MODE", "offline")
    WandbLogger.check("")


def test_an_offline_run_holds_metrics_histograms_and_settings_over_two_lives(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed (r3l[wandb])")
    monkeypatch.setenv("WANDB_MODE", "offline")
    config = load(None, ["learner.lr=0.25"])
    for start, version in ((0, 1), (1, 2)):
        logger = WandbLogger(LoggerContext(tmp_path, config, start, "reasoning"))
        logger.scalars(version, {"learner/loss": version / 2})
        logger.histograms(version, {"group/rewards": np.array([0.0, 1.0, 1.0])})
        logger.close()
    until(lambda: sum(has_ended(file) for file in files(tmp_path)) == 2)
    assert len({file.name for file in files(tmp_path)}) == 1  # one run, continued
    history, settings, projects = [], {}, set()
    for record in (record for file in files(tmp_path) for record in records(file)):
        if record.WhichOneof("record_type") == "history":
            values = {"/".join(item.nested_key): item.value_json for item in record.history.item}
            history.append({key: json.loads(value) for key, value in values.items()})
        elif record.WhichOneof("record_type") == "run":
            projects.add(record.run.project)
            settings |= {one.key: json.loads(one.value_json) for one in record.run.config.update}
    losses = [(row["version"], row["learner/loss"]) for row in history if "learner/loss" in row]
    assert losses == [(1, 0.5), (2, 1.0)]
    assert sum("group/rewards" in " ".join(row) for row in history) == 2
    assert settings["learner"]["lr"] == 0.25 and projects == {"reasoning"}


def files(run: Path) -> list[Path]:
    """The files of a run's lives."""
    return sorted(run.glob("wandb/offline-run-*/*.wandb"))


def has_ended(file: Path) -> bool:
    """Whether the service's own process, which writes the file, has written all."""
    return any(record.WhichOneof("record_type") == "exit" for record in records(file))


def records(file: Path) -> Iterator[Any]:
    """The records of one life's file: LevelDB's log format after seven bytes of header."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, at, parts = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", content, at)
        parts += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (FULL, LAST):
            yield Record.FromString(parts)
            parts = b""
