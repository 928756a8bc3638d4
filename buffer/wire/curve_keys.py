"""Encrypts a buffer's wire with CURVE. Admits only peers whose public keys are listed.

With a client's key a peer may explore and read. Operations that decide about training (`learner`
in buffer.wire.operations) need a learner's key. To admit another peer, add its public key to
`clients` or `learners` in `service.json`.
"""

import json
import os
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import zmq
from zmq.utils import z85

from r3l.errors import UserError

_KEY_LENGTH = 40  # characters of a Z85 key


@dataclass(frozen=True)
class ServiceKeys:
    """The service's own key pair, and the public keys of the admitted peers."""

    public: str
    secret: str
    clients: tuple[str, ...]
    learners: tuple[str, ...]


@dataclass(frozen=True)
class ClientKeys:
    """A client's own key pair, and the public key of its service."""

    public: str
    secret: str
    service: str


K = TypeVar("K", ServiceKeys, ClientKeys)
_FILES: dict[type[Any], str] = {ServiceKeys: "service.json", ClientKeys: "client.json"}
_LEARNER = "learner.json"


def generate(folder: Path) -> tuple[Path, Path, Path]:
    """Writes service.json, client.json and learner.json into `folder`, and returns their paths.
    Raises UserError if one exists or cannot be written."""
    public, secret = _pair()
    client, learner = (ClientKeys(*_pair(), public) for _ in range(2))
    service = ServiceKeys(public, secret, (client.public,), (learner.public,))
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
            (folder / ".gitignore").write_text("*\n", encoding="utf-8")  # keep secrets out of git
    except OSError as error:
        raise UserError(f"keys {folder}: cannot be created ({error.strerror})") from None
    paths = folder / _FILES[ServiceKeys], folder / _FILES[ClientKeys], folder / _LEARNER
    for path in paths:  # all or none: keys of two generations do not match
        if path.exists():
            raise UserError(f"key file {path} already exists; choose another folder")
    return _write(paths[0], service), _write(paths[1], client), _write(paths[2], learner)


def _pair() -> tuple[str, str]:
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def load(kind: type[K], path: Path | str) -> K:
    """Reads a key file of this kind. Raises UserError if it cannot be read or is malformed."""
    try:
        keys: K = msgspec.json.decode(Path(path).read_bytes(), type=kind)
    except OSError as error:
        raise UserError(
            f"keys {path}: cannot be read ({error.strerror}); create keys with r3l-buffer keygen"
        ) from None
    except (msgspec.DecodeError, ValueError) as error:
        raise UserError(
            f"keys {path}: is not a {kind.__name__} file ({error}); use the {_FILES[kind]} that "
            "r3l-buffer keygen wrote"
        ) from None
    written = [keys.public, keys.secret]
    written += [*keys.clients, *keys.learners] if isinstance(keys, ServiceKeys) else [keys.service]
    if not all(map(_is_key, written)):
        raise UserError(
            f"keys {path}: every key must be {_KEY_LENGTH} characters of Z85; "
            "create keys with r3l-buffer keygen"
        )
    return keys


def _is_key(key: str) -> bool:
    try:
        return len(key) == _KEY_LENGTH and bool(z85.decode(key.encode()))
    except (LookupError, ValueError, struct.error):  # not Z85
        return False


def give_keys(dealer: Any, keys: ClientKeys) -> None:
    """Gives a client's socket the client's key pair and the service's public key."""
    dealer.set(zmq.CURVE_SERVERKEY, keys.service.encode())
    dealer.set(zmq.CURVE_PUBLICKEY, keys.public.encode())
    dealer.set(zmq.CURVE_SECRETKEY, keys.secret.encode())


def _write(path: Path, keys: ServiceKeys | ClientKeys) -> Path:
    try:
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise UserError(f"keys {path}: cannot be written ({error.strerror})") from None
    with os.fdopen(opened, "w", encoding="utf-8") as file:
        json.dump(asdict(keys), file, indent=2)
    return path
