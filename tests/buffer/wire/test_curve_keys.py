"""Keys: who has none, or an unknown one, is not heard at all."""

import stat

import pytest

from buffer import BufferClient
from buffer.wire.curve_keys import ClientKeys, ServiceKeys, generate, load
from r3l.errors import BufferUnavailable, UserError

pytestmark = pytest.mark.system


def test_only_clients_with_a_known_key_get_replies(serve, tmp_path):
    service, known = generate(tmp_path / "keys")
    assert (service.parent / ".gitignore").read_text() == "*\n"
    _, stranger = generate(tmp_path / "others")
    served = serve("tcp://0.0.0.0:0", "--keys", service)
    endpoint = served.endpoint.replace("0.0.0.0", "127.0.0.1")
    # the stranger knows which service it wants, but has a key of its own
    stolen = tmp_path / "stolen.json"
    own, theirs = load(ClientKeys, stranger), load(ClientKeys, known)
    stolen.write_text(stranger.read_text().replace(own.service, theirs.service))
    for keys in (None, stranger, stolen):
        with (
            BufferClient(endpoint, timeout_s=1.5, keys=keys) as client,
            pytest.raises(BufferUnavailable),
        ):
            client.stats()
    with BufferClient(endpoint, keys=known) as client:
        assert client.stats().refused["unknown_key"] >= 1


def test_key_files_are_readable_only_by_their_owner_and_never_overwritten(tmp_path):
    for path in generate(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UserError, match="exists"):
        generate(tmp_path)
    (tmp_path / "service.json").unlink()
    with pytest.raises(UserError, match="exists"):
        generate(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["client.json"]


def test_a_key_file_of_another_role_is_refused(tmp_path):
    service, client = generate(tmp_path)
    with pytest.raises(UserError, match="not a ClientKeys file"):
        load(ClientKeys, service)
    with pytest.raises(UserError, match="not a ServiceKeys file"):
        load(ServiceKeys, client)
    with pytest.raises(UserError, match="cannot be read"):
        load(ServiceKeys, tmp_path / "nothing")
