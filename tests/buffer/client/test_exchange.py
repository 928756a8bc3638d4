"""One request and its reply, without sockets and without a clock."""

import pytest

from buffer.client.exchange import (
    Done,
    Exchange,
    GiveUp,
    Patience,
    Peer,
    Replace,
    Report,
    Send,
    Wait,
)
from r3l.errors import BufferUnavailable, ClientClosed

ENDPOINT = "tcp://127.0.0.1:5555"
FRAMES = [b"header", b"reply"]


def a_peer(*, keys: bool = False) -> Peer:
    return Peer("learner", ENDPOINT, keys, report_s=1.0, warn_after_s=10.0)


def begun(peer: Peer, now: float = 100.0, timeout_s: float = 60.0) -> Exchange:
    return Exchange(peer, "commit", "c-0", Patience(timeout_s, 1.0, 5.0), now)


def lived(exchange: Exchange, now: float, end: float) -> list[tuple[float, object]]:
    """Every action but Wait and its time, while no message arrives until `end`."""
    done: list[tuple[float, object]] = []
    while now < end:
        match exchange.next(now):
            case Wait(until):
                assert until > now
                now = until
            case GiveUp() as last:
                return [*done, (now, last)]
            case action:
                done.append((now, action))
    return done


def times(done: list[tuple[float, object]], kind: type) -> list[float]:
    return [now for now, action in done if isinstance(action, kind)]


def test_a_reply_in_time_ends_the_exchange() -> None:
    exchange = begun(a_peer())
    assert exchange.next(100.0) == Send()
    assert exchange.next(100.0) == Wait(101.0)
    exchange.received("c-0", FRAMES)
    assert exchange.replied and exchange.next(100.5) == Done(FRAMES, again="")


def test_only_the_first_reply_to_this_request_counts() -> None:
    exchange = begun(a_peer())
    assert exchange.next(100.0) == Send()
    for rid in ("", "c-1", "of another client"):
        exchange.received(rid, [b"foreign"])
    assert exchange.next(100.5) == Wait(101.0)
    exchange.received("c-0", FRAMES)
    exchange.received("c-0", [b"late"])
    assert exchange.next(100.5) == Done(FRAMES, again="")


def test_a_request_is_sent_again_after_1_2_4_5_5_seconds_and_never_after_its_deadline() -> None:
    done = lived(begun(a_peer(), timeout_s=20.0), 100.0, 200.0)
    assert times(done, Send) == [100.0, 101.0, 103.0, 107.0, 112.0, 117.0]
    assert times(done, Replace) == [101.0, 103.0, 107.0, 112.0, 117.0, 120.0]
    kinds = [type(action) for _, action in done if not isinstance(action, Report)]
    assert kinds == [Send, Replace] * 6 + [GiveUp]
    assert done[-1][0] == 120.0


def test_a_reply_to_any_try_counts_also_after_the_deadline() -> None:
    exchange = begun(a_peer(), timeout_s=2.0)
    assert exchange.next(100.0) == Send()
    assert isinstance(exchange.next(101.0), Report)
    assert exchange.next(101.0) == Replace()
    exchange.received("c-0", FRAMES)
    assert exchange.next(103.0) == Done(FRAMES, again="")


@pytest.mark.parametrize("keys", [True, False])
def test_without_a_reply_the_error_names_who_what_and_how_long(keys: bool) -> None:
    *_, (_, last) = lived(begun(a_peer(keys=keys), timeout_s=2.5), 100.0, 200.0)
    assert isinstance(last, GiveUp) and isinstance(last.error, BufferUnavailable)
    hint = "" if keys else "; check that the buffer runs and needs no keys"
    assert str(last.error) == f"buffer at {ENDPOINT}: learner got no reply to commit in 2.5 s{hint}"
    assert last.error.facts == {"endpoint": ENDPOINT, "waited_s": 2.5}


def test_a_request_without_time_is_not_sent() -> None:
    assert isinstance(begun(a_peer(), timeout_s=0.0).next(100.0), GiveUp)


@pytest.mark.parametrize("moment", ["before", "waiting", "to be sent again"])
def test_a_closed_client_ends_its_exchange_at_any_moment(moment: str) -> None:
    peer = a_peer()
    exchange = begun(peer)
    if moment != "before":
        assert exchange.next(100.0) == Send()
    if moment == "to be sent again":
        exchange.stuck(100.5)
        assert exchange.next(100.5) == Replace()
    peer.closed = True
    last = exchange.next(100.6)
    assert isinstance(last, GiveUp) and isinstance(last.error, ClientClosed)
    said = f"learner of the buffer at {ENDPOINT} was closed and cannot send commit"
    assert str(last.error) == said


def test_a_reply_that_arrived_is_read_although_the_client_was_closed_since() -> None:
    peer = a_peer()
    exchange = begun(peer)
    assert exchange.next(100.0) == Send()
    exchange.received("c-0", FRAMES)
    peer.closed = True
    assert exchange.next(100.1) == Done(FRAMES, again="")


def test_a_stuck_socket_is_replaced_at_once_and_the_next_try_is_longer() -> None:
    exchange = begun(a_peer())
    assert exchange.next(100.0) == Send()
    exchange.stuck(100.2)
    assert [exchange.next(100.2) for _ in range(3)] == [Replace(), Send(), Wait(101.0)]
    assert isinstance(exchange.next(101.0), Report)
    assert exchange.next(101.0) == Wait(102.0), "the second try ends at 102.2"


def test_an_overdue_reply_is_reported_every_second_and_warned_of_ever_less() -> None:
    done = lived(begun(a_peer()), 100.0, 200.0)
    assert times(done, Report) == [100.0 + second for second in range(1, 61)]
    reports = [(now, action) for now, action in done if isinstance(action, Report)]
    assert [now - 100.0 for now, report in reports if report.warn] == [11.0, 23.0, 47.0]
    assert reports[10][1].line == (
        f"learner waits for the buffer at {ENDPOINT}: no reply to commit for 11 s"
    )


def test_requests_of_one_client_report_in_turn_and_count_one_silence() -> None:
    peer = a_peer()
    first, second = begun(peer, 100.0), begun(peer, 100.5)
    assert first.next(100.0) == second.next(100.5) == Send()
    assert isinstance(first.next(101.0), Report)
    assert second.next(101.4) == Wait(101.5), "a second has not passed since the first report"
    assert [second.next(101.5), second.next(101.5)] == [Replace(), Send()]
    report = second.next(102.0)
    assert isinstance(report, Report) and report.line.endswith("for 2 s")


def test_the_end_of_a_silence_is_told_only_if_its_beginning_was() -> None:
    peer = a_peer()
    exchange = begun(peer)
    lived(exchange, 100.0, 105.0)
    exchange.received("c-0", FRAMES)
    assert exchange.next(105.0) == Done(FRAMES, again="")

    exchange = begun(peer, 200.0)
    warned = [now for now, a in lived(exchange, 200.0, 220.0) if isinstance(a, Report) and a.warn]
    assert warned == [211.0], "the silence before is over"
    exchange.received("c-0", FRAMES)
    again = f"the buffer at {ENDPOINT} replies again, after 20 s"
    assert exchange.next(220.0) == Done(FRAMES, again)
    exchange = begun(peer, 300.0)
    exchange.received("c-0", FRAMES)
    assert exchange.next(300.0) == Done(FRAMES, again="")
