"""A repetition of a request is told from another request that is equal to it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from actors.gateway.call_tree import Node
from actors.gateway.open_requests import OpenRequest, OpenRequests

Test = Callable[[], Coroutine[Any, Any, None]]


class Clients:
    """Clients that ask one question. Remembers whose request was sampled."""

    def __init__(self) -> None:
        self.requests, self.sampled = OpenRequests(), list[OpenRequest]()

    def ask(self, *, again: bool = False) -> tuple[OpenRequest, list[bool]]:
        """Returns the request that answers a client, and a list that is filled when it goes."""
        went: list[bool] = []
        request = self.requests.repeated("q", again=again)
        if request is None:
            node = Node(None, (), (), (), len(self.sampled))
            request = OpenRequest(node, asyncio.create_task(answer(len(self.sampled))))
            self.requests.add("q", request)
            self.sampled.append(request)
        request.clients.append(lambda: bool(went))
        return request, went


async def answer(number: int) -> dict[str, Any]:
    return {"id": str(number)}


def test_a_repetition_gets_the_request_whose_client_has_gone() -> None:
    async def test() -> None:
        clients = Clients()
        (one, _), (two, went), (three, _) = clients.ask(), clients.ask(), clients.ask()
        assert len({id(each) for each in (one, two, three)}) == 3
        went.append(True)
        assert clients.ask(again=True)[0] is two
        assert clients.ask()[0] not in (one, two, three)

    asyncio.run(test())


def test_behind_a_proxy_repetitions_are_shared_out() -> None:
    async def test() -> None:
        clients = Clients()
        asked = [clients.ask()[0] for _ in range(3)]
        assert [clients.ask(again=True)[0] for _ in range(3)] == asked

    asyncio.run(test())


def test_the_newest_answer_is_repeated_to_a_client_that_asks_for_it() -> None:
    async def test() -> None:
        clients = Clients()
        for _ in range(2):
            request, _ = clients.ask()
            clients.requests.received(request.answering)
        assert clients.ask(again=True)[0] is request and len(clients.sampled) == 2

    asyncio.run(test())


def test_a_request_that_was_cancelled_is_not_repeated() -> None:
    async def test() -> None:
        clients = Clients()
        request, went = clients.ask()
        went.append(True)
        clients.requests.cancel()
        await asyncio.wait([request.answering])
        assert clients.ask(again=True)[0] is not request

    asyncio.run(test())


@settings(max_examples=200)
@given(st.lists(st.sampled_from(["ask", "again", "go", "receive"]), max_size=30), st.randoms())
def test_no_sample_is_lost_and_no_answer_goes_to_two_clients_that_wait(
    moves: list[str], random: Any
) -> None:
    """Clients come, go away without their answer, come back, and receive answers."""

    async def test() -> None:
        clients, left = Clients(), 0
        here: list[tuple[OpenRequest, list[bool]]] = []
        for move in moves:
            if move == "ask" or (move == "again" and left):
                request, went = clients.ask(again=move == "again")
                assert all(request is not other for other, _ in here)
                here.append((request, went))
                left = max(0, left - 1)
            elif move in ("go", "receive") and here:
                request, went = here.pop(random.randrange(len(here)))
                if move == "go":
                    went.append(True)
                    left += 1
                else:
                    clients.requests.received(request.answering)
        unseen = [each for each in clients.sampled if not each.node.seen]
        assert len(unseen) == len(here) + left

    asyncio.run(test())
