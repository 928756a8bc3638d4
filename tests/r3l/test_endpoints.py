"""Addresses: what has the form of one is taken, everything else is refused in a line."""

import pytest

from r3l.endpoints import check_bind, check_endpoint
from r3l.errors import UserError


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1:5555",
        "tcp://localhost:1",
        "tcp://node-3.cluster_b.local:65535",
        "tcp://[fe80::1]:5555",
        "ipc:///run/r3l/buffer.sock",
    ],
)
def test_addresses_of_services_are_taken_as_they_are(endpoint: str) -> None:
    assert check_endpoint(endpoint, "buffer") == endpoint


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "nonsense",
        "127.0.0.1:5555",
        "http://127.0.0.1:5555",
        "tcp://127.0.0.1",
        "tcp://127.0.0.1:",
        "tcp://127.0.0.1:0",
        "tcp://127.0.0.1:65536",
        "tcp://127.0.0.1:99999999999999999999",
        "tcp://127.0.0.1:5555\n",
        "tcp://127.0.0.1:5555 tcp://127.0.0.1:5556",
        "tcp://*:5555",
        "tcp://:5555",
        "tcp://..:5555",
        "ipc://",
        "ipc://" + "x" * 108,
    ],
)
def test_anything_else_is_refused_with_the_form_an_address_has(endpoint: str) -> None:
    with pytest.raises(UserError, match="must look like tcp://HOST:PORT") as refused:
        check_endpoint(endpoint, "buffer")
    assert str(refused.value).startswith(f"buffer {endpoint!r:.20}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "bind",
    ["tcp://127.0.0.1:0", "tcp://localhost:*", "tcp://[::1]:65535", "ipc:///run/r3l/weights.sock"],
)
def test_services_listen_where_only_this_machine_connects(bind: str) -> None:
    assert check_bind(bind, "weights", encrypted=False) == bind


@pytest.mark.parametrize("bind", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://node-3:5555"])
def test_services_listen_to_others_only_with_keys(bind: str) -> None:
    assert check_bind(bind, "weights", encrypted=True) == bind
    with pytest.raises(UserError, match="without --keys only loopback"):
        check_bind(bind, "weights", encrypted=False)


@pytest.mark.parametrize(
    "bind",
    ["", "nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:-4", "tcp://127.0.0.1:99999", "tcp://:5"],
)
def test_services_listen_nowhere_else(bind: str) -> None:
    with pytest.raises(UserError, match=r"must look like tcp://127\.0\.0\.1:PORT") as refused:
        check_bind(bind, "weights", encrypted=True)
    assert "\n" not in str(refused.value)
