"""The gateway listens at any kind of address, and gives agents one that was tried."""

import socket
import subprocess
from pathlib import Path

import pytest

from actors.gateway import address
from actors.gateway.address import check_certificate, listen, reached_at
from r3l.errors import UserError

HOSTS = ["127.0.0.1", "localhost", "0.0.0.0", "::1", "[::1]", "::", ""]


def has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("host", HOSTS)
def test_an_address_of_every_kind_is_reached_at_the_host_that_is_given(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if ":" in host and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    with listen(host, 0) as listening:
        port = listening.getsockname()[1]
        shown = reached_at(host, port)
        assert shown == {"::1": "[::1]", "[::1]": "[::1]", "127.0.0.1": host}.get(host, "localhost")
        socket.create_connection((shown.strip("[]"), port)).close()
        if host == "::":
            socket.create_connection(("127.0.0.1", port)).close()


def test_a_name_that_leads_nowhere_is_not_given_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "no-such-machine.invalid")
    monkeypatch.setattr(address, "_names", lambda: iter(("no-such-machine.invalid", "127.0.0.1")))
    with listen("0.0.0.0", 0) as listening:
        port = listening.getsockname()[1]
        assert reached_at("0.0.0.0", port) == "127.0.0.1"
        monkeypatch.setattr(address, "_names", lambda: iter(("no-such-machine.invalid",)))
        with pytest.raises(UserError, match=r"actor.agent.host=0.0.0.0: .*no-such-machine.invalid"):
            reached_at("0.0.0.0", port)
    with pytest.raises(UserError, match=r"actor.agent.host=127\.0\.0\.1: agents would not reach"):
        reached_at("127.0.0.1", port)


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-machine.invalid", "fe80::1", "1.2.3.4.5"])
def test_a_foreign_address_is_named(host: str) -> None:
    with pytest.raises(UserError, match="cannot listen on"):
        listen(host, 0)


def certificate(folder: Path, *more: str) -> Path:
    """A certificate for localhost that signs itself, with its key."""
    key, file = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", "/CN=localhost"]
        + ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", key, "-out", file]
        + (list(more) or ["-nodes"]),
        check=True,
        capture_output=True,
    )
    file.write_bytes(file.read_bytes() + key.read_bytes())
    return file


@pytest.mark.parametrize("kind", ["missing", "folder", "text", "password", "no key"])
def test_a_certificate_that_cannot_be_used_is_named(kind: str, tmp_path: Path) -> None:
    file = certificate(tmp_path, *(["-passout", "pass:word"] if kind == "password" else []))
    check_certificate(str(certificate(tmp_path))) if kind == "text" else None
    match kind:
        case "missing":
            file.unlink()
        case "folder":
            file = tmp_path
        case "text":
            file.write_text("hello")
        case "no key":
            file.write_bytes(file.read_bytes().partition(b"-----BEGIN PRIVATE")[0])
    with pytest.raises(UserError, match=r"actor.agent.certificate=.*PEM file with the"):
        check_certificate(str(file))
