"""A signal asks a warm-up to stop; a second one does not wait."""

import signal
import threading

import pytest

from learner.warmup.stopping import SIGNALS, stop_asked


@pytest.mark.parametrize("signum", SIGNALS)
def test_the_first_signal_asks_and_the_second_stops(
    signum: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    before = signal.getsignal(signum)
    with stop_asked() as asked:
        assert not asked()
        signal.raise_signal(signum)
        assert asked() and capsys.readouterr().err.count("\n") == 1
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signum)
    assert signal.getsignal(signum) is before


def test_another_thread_gets_no_signals() -> None:
    said = list[bool]()

    def warm() -> None:
        with stop_asked() as asked:
            said.append(asked())

    thread = threading.Thread(target=warm, daemon=True)
    thread.start()
    thread.join()
    assert said == [False]
