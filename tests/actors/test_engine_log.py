"""The last lines of an engine's log."""

import subprocess
import sys

from actors.engine_log import EngineLog


def test_the_last_lines_are_kept_during_and_after_the_start_of_the_engine() -> None:
    log = EngineLog()
    with log.captured():
        code = "import time; print('early', flush=True); time.sleep(0.3); print('late', flush=True)"
        engine = subprocess.Popen([sys.executable, "-c", code])
    subprocess.run(["echo", "not the engine's"], check=True)
    engine.wait()
    log.join()
    assert log.last_lines() == ["early", "late"]
