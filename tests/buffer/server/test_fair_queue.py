"""The order of the requests that wait for the writer, without clocks and sockets."""

import threading
import time
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from buffer.server.fair_queue import KEPT_FOR_LARGE, MIXED_BYTES, FairQueue
from buffer.wire.messages import ReceivedRequest
from buffer.wire.operations import OPERATIONS
from buffer.wire.sockets import LARGE


def request(client: str, rid: object = "r", nbytes: int = 100) -> ReceivedRequest:
    return ReceivedRequest(client.encode(), OPERATIONS["renew"], str(rid), None, nbytes)


def taken(queue: FairQueue, most: int = 256, most_bytes: int = 1 << 24) -> list[str]:
    """The clients and ids of the next transaction."""
    found, _ = queue.take(0.0, most, most_bytes)
    return [f"{each.client.decode()}{each.rid}" for each in found]


def test_small_requests_go_first_and_clients_take_turns() -> None:
    queue = FairQueue()
    queue.put([request("a", number, LARGE) for number in range(3)])
    queue.put([request("b", 0, LARGE), request("a", 3), request("a", 4), request("c", 0)])
    assert taken(queue) == ["a3", "c0", "a4", "a0", "b0", "a1", "a2"]
    assert taken(queue) == []


def test_a_transaction_has_a_limit_of_bytes_and_of_requests_and_places_for_large_ones() -> None:
    queue = FairQueue()
    queue.put(request("a", number, 10 * LARGE) for number in range(100))
    assert len(taken(queue, most_bytes=25 * LARGE)) == 3
    queue.put(request("b", number) for number in range(1000))
    assert len(taken(queue, most=1)) == 1
    kinds = Counter(name[0] for name in taken(queue, most=256))
    assert kinds == {"a": KEPT_FOR_LARGE, "b": 256 - KEPT_FOR_LARGE}


def test_large_requests_beside_small_ones_have_few_bytes_but_move_on() -> None:
    queue = FairQueue()
    queue.put(request(str(number % 10), "large", 1 << 20) for number in range(40))
    queue.put(request("b", number, LARGE - 1) for number in range(256))
    first = taken(queue)
    assert first[:240] == [f"b{number}" for number in range(240)] and first[240:] == ["0large"]
    assert [name for name in taken(queue) if name[-1] == "e"] == [f"{n}large" for n in range(1, 5)]
    assert MIXED_BYTES == 4 << 20 and len(taken(queue)) == 16, "no small one is left"


sent = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.booleans(), st.booleans()), max_size=80)


@given(sent, st.integers(1, 9))
def test_no_client_waits_for_more_than_one_request_of_each_other_one(
    events: list[tuple[str, bool, bool]], most: int
) -> None:
    """`events`: who sends a request, whether it is small, and whether the writer takes some then.
    Only requests of the same kind count; small ones never wait for large ones of a later take."""
    queue, order, alone = FairQueue(), list[ReceivedRequest](), dict[int, int]()

    def take() -> None:
        order.extend(queue.take(0.0, most, 4 * LARGE)[0])

    waiting = Counter[tuple[str, bool]]()
    for number, (client, small, takes) in enumerate(events):
        made = request(client, number, 100 if small else LARGE)
        done = {each.rid for each in order}
        waiting = Counter((events[n][0], events[n][1]) for n in range(number) if str(n) not in done)
        if not waiting[client, small]:
            alone[number] = len(order)  # its client has no other of this kind
        queue.put([made])
        if takes:
            take()
    while len(order) < len(events):
        take()
    assert sorted(int(each.rid) for each in order) == list(range(len(events)))
    for number, since in alone.items():
        client, small, _ = events[number]
        place = next(i for i, each in enumerate(order) if each.rid == str(number))
        before = Counter(
            each.client for each in order[since:place] if (each.nbytes < LARGE) == small
        )
        assert all(count == 1 for count in before.values()) and client.encode() not in before
    for client in "abcdefgh":
        for small in (True, False):
            own = [int(each.rid) for each in order if each.client == client.encode()
                   and (each.nbytes < LARGE) == small]  # fmt: skip
            assert own == sorted(own)


def test_the_writer_waits_for_a_request_and_ends_once_all_are_taken() -> None:
    queue = FairQueue()
    assert queue.take(0.0, 9, 9) == ([], True)
    later = threading.Timer(0.05, lambda: queue.put([request("a")]))
    later.start()
    found, more = queue.take(time.monotonic() + 60, 9, 9)
    assert len(found) == 1 and more
    queue.put([request("a", 1), request("b", 2)])
    queue.end()
    assert [len(queue.take(0.0, 1, 9)[0]) for _ in range(2)] == [1, 1]
    assert queue.take(0.0, 9, 9) == ([], False)
