"""Addresses: what has the form of one is taken, everything else is refused in a line."""

import socket

import pytest
import zmq

from buffer.wire.sockets import bind as listen
from r3l.errors import UserError
from r3l.run.process.endpoints import check_bind, check_endpoint, is_near, with_port


@pytest.mark.parametrize(
    "endpoint",
    [
        "tcp://127.0.0.1:5555",
        "tcp://localhost:1",
        "tcp://node-3.cluster_b.local:65535",
        "tcp://[fe80::1]:5555",
    ],
)
def test_valid_addresses_are_returned_unchanged(endpoint: str) -> None:
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
        "ipc:///run/r3l/buffer.sock",
    ],
)
def test_an_invalid_address_is_refused_with_the_valid_form(endpoint: str) -> None:
    with pytest.raises(UserError, match="tcp://HOST:PORT") as refused:
        check_endpoint(endpoint, "buffer")
    assert str(refused.value).startswith(f"buffer {endpoint!r:.20}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "bind",
    ["tcp://127.0.0.1:0", "tcp://localhost:*", "tcp://[::1]:65535"],
)
def test_a_service_may_listen_on_loopback_without_keys(bind: str) -> None:
    assert check_bind(bind, "weights", encrypted=False) == bind


@pytest.mark.parametrize("bind", ["tcp://*:5555", "tcp://0.0.0.0:5555", "tcp://node-3:5555"])
def test_a_service_listens_to_other_machines_only_with_keys(bind: str) -> None:
    assert check_bind(bind, "weights", encrypted=True) == bind
    with pytest.raises(UserError, match=r"only loopback addresses .* without --keys"):
        check_bind(bind, "weights", encrypted=False)


@pytest.mark.parametrize(
    "bind",
    ["", "nonsense", "tcp://127.0.0.1", "tcp://127.0.0.1:-4", "tcp://127.0.0.1:99999", "tcp://:5"],
)
def test_an_invalid_bind_address_is_refused(bind: str) -> None:
    with pytest.raises(UserError, match=r"must look like tcp://127\.0\.0\.1:PORT") as refused:
        check_bind(bind, "weights", encrypted=True)
    assert "\n" not in str(refused.value)


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_chosen_port_is_given_to_its_service_and_to_no_other_program(host: str) -> None:
    if host == "[::1]" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    family = socket.AF_INET6 if host == "[::1]" else socket.AF_INET
    with with_port(f"tcp://{host}:*") as bind, zmq.Context() as context:
        port = int(bind.removeprefix(f"tcp://{host}:"))
        with socket.socket(family) as other, pytest.raises(OSError, match="in use"):
            other.bind((host.strip("[]"), port))
        for _ in range(2):  # the second is a restarted service
            with context.socket(zmq.ROUTER) as service, context.socket(zmq.DEALER) as client:
                client.set(zmq.IPV6, host == "[::1]")
                assert listen(service, bind, "service") == bind
                client.connect(bind)
                client.send(b"hello")
                assert service.recv_multipart()[1] == b"hello"


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid", "[2001:db8::1]"])
def test_a_host_that_is_not_this_machine_is_refused(host: str) -> None:
    with pytest.raises(UserError, match="cannot listen") as refused, with_port(f"tcp://{host}:0"):
        pass
    assert host in str(refused.value) and "\n" not in str(refused.value)


def test_a_given_port_is_kept() -> None:
    with with_port("tcp://127.0.0.1:5555") as bind:
        assert bind == "tcp://127.0.0.1:5555"


@pytest.mark.parametrize(
    ("host", "near"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "localhost", "LOCALHOST", "[::1]")),
        *((host, True) for host in ("0.0.0.0", "[::]", "a.localhost", socket.gethostname())),
        *((host, False) for host in ("10.0.0.1", "[2001:db8::1]", "host.example", "localhost.x")),
    ],
)
def test_a_url_of_this_machine_is_told_from_others(host: str, near: bool) -> None:
    assert is_near(f"http://{host}:8000/v1") == is_near(f"https://{host}/v1") == near
