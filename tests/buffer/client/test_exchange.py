"""One request and its reply, without sockets and without a clock."""

from itertools import pairwise

import pytest

from buffer.client.exchange import (
    Ask,
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
from buffer.wire.messages import BUSY, WANTED
from buffer.wire.sockets import NO_PLACE, UNKNOWN_KEY
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
    exchange.received("c-0", "", FRAMES, 100.5)
    assert exchange.replied and exchange.next(100.5) == Done(FRAMES, again="")


def test_only_the_first_reply_to_this_request_counts() -> None:
    exchange = begun(a_peer())
    assert exchange.next(100.0) == Send()
    for rid in ("", "c-1", "of another client"):
        exchange.received(rid, "", [b"foreign"], 100.5)
    assert exchange.next(100.5) == Wait(101.0)
    exchange.received("c-0", "", FRAMES, 100.5)
    exchange.received("c-0", "", [b"late"], 100.5)
    assert exchange.next(100.5) == Done(FRAMES, again="")


def test_a_silent_service_is_asked_after_1_2_4_5_s_and_then_on_a_new_socket() -> None:
    done = lived(begun(a_peer(), timeout_s=20.0), 100.0, 200.0)
    assert times(done, Send) == [100.0, 102.0, 105.0, 110.0, 116.0]
    assert times(done, Ask) == [101.0, 104.0, 109.0, 115.0]
    assert times(done, Replace) == [102.0, 105.0, 110.0, 116.0, 120.0]
    assert [action.whole for _, action in done if isinstance(action, Send)] == [True] + [False] * 4
    assert isinstance(done[-1][1], GiveUp) and done[-1][0] == 120.0


def test_while_bytes_move_the_client_waits_beyond_the_deadline() -> None:
    exchange = begun(a_peer(), timeout_s=6.0)
    assert exchange.next(100.0) == Send()
    now, asked = 100.0, []
    while now < 160.0:
        match exchange.next(now):
            case Ask():
                asked.append(now)
                exchange.alive(now)
            case Wait(until):
                now = until
            case other:
                assert isinstance(other, Report)
    assert len(asked) > 9 and max(b - a for a, b in pairwise(asked)) <= 5.0
    assert isinstance(lived(exchange, 160.0, 200.0)[-1][1], GiveUp), "it is silent from then on"


def test_a_service_at_work_keeps_its_client_until_the_deadline_on_one_socket() -> None:
    exchange = begun(a_peer(), timeout_s=30.0)
    now, done = 100.0, []
    while not isinstance(action := exchange.next(now), GiveUp):
        if isinstance(action, Ask):
            exchange.received("c-0", BUSY, [], now + 0.1)
        now = action.until if isinstance(action, Wait) else now
        done.append((now, action))
    assert times(done, Send) == [100.0] and times(done, Replace) == [130.0] == [now]


def test_what_the_service_does_not_know_is_sent_whole_once() -> None:
    exchange = begun(a_peer())
    assert exchange.next(100.0) == Send(whole=True)
    exchange.received("c-0", WANTED, [], 100.5)
    assert isinstance(exchange.next(100.5), Wait), "it is on its way"
    assert isinstance(exchange.next(101.0), Report) and exchange.next(101.0) == Ask()
    exchange.received("c-0", WANTED, [], 101.2)
    assert exchange.next(101.2) == Send(whole=True)
    exchange.received("c-0", WANTED, [], 101.3)
    assert isinstance(exchange.next(101.3), Wait)
    exchange.inquired()  # another request had the socket replaced
    exchange.received("c-0", WANTED, [], 101.4)
    assert exchange.next(101.4) == Send(whole=True)


def test_a_request_that_may_be_kept_is_overdue_only_then() -> None:
    patience = Patience(20.0, 1.0, 5.0, held_s=2.0)
    exchange = Exchange(a_peer(), "lease", "c-0", patience, 100.0)
    done = lived(exchange, 100.0, 104.0)
    assert times(done, Ask) == [103.0] and times(done, Report) == [103.0]


def test_a_reply_to_any_try_counts_also_after_the_deadline() -> None:
    exchange = begun(a_peer(), timeout_s=2.0)
    assert exchange.next(100.0) == Send()
    assert isinstance(exchange.next(101.0), Report)
    assert exchange.next(101.0) == Ask()
    assert isinstance(exchange.next(102.0), Report)
    assert exchange.next(102.0) == Replace()
    exchange.received("c-0", "", FRAMES, 100.5)
    assert exchange.next(103.0) == Done(FRAMES, again="")


@pytest.mark.parametrize("keys", [True, False])
def test_without_a_reply_the_error_names_who_what_and_how_long(keys: bool) -> None:
    *_, (_, last) = lived(begun(a_peer(keys=keys), timeout_s=2.5), 100.0, 200.0)
    assert isinstance(last, GiveUp) and isinstance(last.error, BufferUnavailable)
    hint = "" if keys else "; check that the buffer runs and needs no keys"
    assert str(last.error) == f"buffer at {ENDPOINT}: learner got no reply to commit in 2.5 s{hint}"
    assert last.error.facts == {"endpoint": ENDPOINT, "waited_s": 2.5}


def test_a_refused_client_is_told_why_until_it_is_accepted() -> None:
    peer = a_peer()
    peer.refused = NO_PLACE
    *_, (_, last) = lived(begun(peer, timeout_s=2.5), 100.0, 200.0)
    peer.refused = UNKNOWN_KEY
    assert peer.report("renew", 100.0, 101.0).line.endswith("; it refuses this client's key")
    assert isinstance(last, GiveUp)
    assert str(last.error).endswith(" in 2.5 s; it has no place for another client; end one "
                                    "that is not needed")  # fmt: skip
    peer.replied(300.0)
    assert peer.report("renew", 400.0, 401.0).line.endswith(" for 1 s")


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
    exchange.received("c-0", "", FRAMES, 100.5)
    peer.closed = True
    assert exchange.next(100.1) == Done(FRAMES, again="")


def test_a_stuck_socket_is_replaced_at_once_and_the_next_try_is_longer() -> None:
    exchange = begun(a_peer())
    assert exchange.next(100.0) == Send()
    exchange.stuck(100.2)
    assert [exchange.next(100.2) for _ in range(3)] == [Replace(), Send(False), Wait(101.0)]
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
    assert second.next(101.5) == Ask()
    report = second.next(102.0)
    assert isinstance(report, Report) and report.line.endswith("for 2 s")


def test_the_end_of_a_silence_is_told_only_if_its_beginning_was() -> None:
    peer = a_peer()
    exchange = begun(peer)
    lived(exchange, 100.0, 105.0)
    exchange.received("c-0", "", FRAMES, 100.5)
    assert exchange.next(105.0) == Done(FRAMES, again="")

    exchange = begun(peer, 200.0)
    warned = [now for now, a in lived(exchange, 200.0, 220.0) if isinstance(a, Report) and a.warn]
    assert warned == [211.0], "the silence before is over"
    exchange.received("c-0", "", FRAMES, 100.5)
    again = f"the buffer at {ENDPOINT} replies again, after 20 s"
    assert exchange.next(220.0) == Done(FRAMES, again)
    exchange = begun(peer, 300.0)
    exchange.received("c-0", "", FRAMES, 100.5)
    assert exchange.next(300.0) == Done(FRAMES, again="")
