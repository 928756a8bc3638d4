"""A heartbeat's age is measured with the clock of the process that reads it."""

from pathlib import Path

import pytest

from r3l.run.process.last_heartbeat import HEARTBEAT, LastHeartbeat


def test_a_learner_is_overdue_if_its_last_heartbeat_is_older_than_its_limit_and_the_grace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("r3l.run.process.last_heartbeat.time.monotonic", lambda: now[0])
    heartbeat, file = LastHeartbeat(tmp_path, limit_s=10.0), tmp_path / HEARTBEAT
    heartbeat.renew()
    assert heartbeat.doing == "" and not heartbeat.overdue()
    now[0] += 10 + 10
    file.write_text("step 7")
    assert not heartbeat.overdue() and heartbeat.doing == "step 7"
    now[0] += 10 + 10
    assert not heartbeat.overdue()
    now[0] += 1
    assert heartbeat.overdue()
    heartbeat.renew()
    assert not heartbeat.overdue()
