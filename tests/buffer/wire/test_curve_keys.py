"""Keys: who has none, or an unknown one, is not heard at all."""

import stat

import pytest

from buffer import BufferClient
from buffer.wire.curve_keys import ClientKeys, ServiceKeys, generate, load
from r3l.errors import BufferUnavailable, NotAllowed, UserError
from r3l.records import GroupPlan
from tests.buffer.fakes import until

pytestmark = pytest.mark.system


def test_only_clients_with_a_known_key_get_replies(serve, tmp_path):
    service, known, _ = generate(tmp_path / "keys")
    assert (service.parent / ".gitignore").read_text() == "*\n"
    _, stranger, _ = generate(tmp_path / "others")
    served = serve("tcp://0.0.0.0:0", "--keys", service)
    endpoint = served.endpoint.replace("0.0.0.0", "127.0.0.1")
    # the stranger knows which service it wants, but has a key of its own
    stolen = tmp_path / "stolen.json"
    own, theirs = load(ClientKeys, stranger), load(ClientKeys, known)
    stolen.write_text(stranger.read_text().replace(own.service, theirs.service))
    for keys in (None, stranger, stolen):
        with (
            BufferClient(endpoint, timeout_s=1.5, keys=keys) as client,
            pytest.raises(BufferUnavailable) as error,
        ):
            client.stats()
        assert ("refuses this client's key" in str(error.value)) == (keys == stolen)
    with BufferClient(endpoint, keys=known) as client:
        until(lambda: client.stats().refused.get("unknown_key", 0) >= 1)


def test_what_decides_about_training_needs_a_learners_key(serve, tmp_path, tasks):
    service, actor, learner = generate(tmp_path / "keys")
    served = serve("tcp://127.0.0.1:0", "--keys", service, "learner.groups_per_step=2")
    with BufferClient(served.endpoint, keys=actor) as client:
        refused = (
            lambda: client.set_version(7),
            lambda: client.add_tasks(tasks(1)),
            lambda: client.draw(2, 0),
            lambda: client.draw(2, 0, consumer="notebook"),
            lambda: client.commit(1, 1, 1),
            lambda: client.discard(1, "not_finite"),
            lambda: client.release_draws("learner"),
        )
        for ask in refused:
            with pytest.raises(NotAllowed, match=r"learner's key.*learner.json"):
                ask()
        now = client.stats()
        assert now.refused == {"NotAllowed": len(refused)}
        assert (now.learner_version, now.max_staleness, now.tasks) == (0, 4, 0)
        with BufferClient(served.endpoint, keys=learner) as training:
            training.add_tasks(tasks(1))
            training.set_version(7)
        assert client.lease("a", 7, GroupPlan(1)).task.task_id == "t0"


def test_key_files_are_readable_only_by_their_owner_and_never_overwritten(tmp_path):
    for path in generate(tmp_path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(UserError, match="exists"):
        generate(tmp_path)
    (tmp_path / "service.json").unlink()
    with pytest.raises(UserError, match="exists"):
        generate(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"client.json", "learner.json"}


def test_a_key_file_of_another_role_is_refused(tmp_path):
    service, client, _ = generate(tmp_path)
    with pytest.raises(UserError, match="not a ClientKeys file"):
        load(ClientKeys, service)
    with pytest.raises(UserError, match="not a ServiceKeys file"):
        load(ServiceKeys, client)
    with pytest.raises(UserError, match="cannot be read"):
        load(ServiceKeys, tmp_path / "nothing")


@pytest.mark.parametrize("key", ["", "a", "a" * 41, "~" * 40, "#" * 40, "é" * 40])
def test_a_key_that_is_not_of_z85_is_refused(tmp_path, key):
    service, client, _ = generate(tmp_path / "keys")
    for kind, path in ((ServiceKeys, service), (ClientKeys, client)):
        wrong = tmp_path / "wrong.json"
        wrong.write_text(path.read_text().replace(load(kind, path).secret, key))
        with pytest.raises(UserError, match="Z85"):
            load(kind, wrong)
