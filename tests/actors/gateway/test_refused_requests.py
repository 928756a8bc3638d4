"""The requests that the gateway refused are named to the attempt that made them."""

import time

from actors.gateway.refused_requests import MOST_KEPT, MOST_NAMED, RefusedRequests


def test_an_attempt_is_told_its_own_requests_or_those_that_are_nobodys() -> None:
    refused, began = RefusedRequests(), time.monotonic()
    refused.add("mine", "POST /chat", "404: no")
    refused.add("mine", "POST /chat", "404: no")
    refused.add("", "POST /v1/messages", "401: whose?")
    assert refused.of("mine", began) == ["POST /chat (404: no)"]
    assert refused.of("other", began) == ["POST /v1/messages (401: whose?)"]
    assert refused.of("mine", time.monotonic() + 1.0) == []


def test_the_requests_of_a_flood_are_few_short_and_printable() -> None:
    refused = RefusedRequests()
    for number in range(2 * MOST_KEPT):
        refused.add("", f"POST /{number}\x1b{'x' * 10_000}", "404: " + "y" * 10_000)
    named = refused.of("", 0.0)
    assert len(named) == MOST_NAMED and all(len(text) < 300 for text in named)
    assert named[0].startswith(rf"POST /{MOST_KEPT}\x1bx")
