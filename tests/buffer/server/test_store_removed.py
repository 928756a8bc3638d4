"""A store that is moved or deleted while it is served ends its service, which says so once."""

import shutil

import pytest

from buffer import BufferClient
from r3l.errors import BufferUnavailable
from r3l.records import GroupPlan, Task

pytestmark = pytest.mark.system


@pytest.mark.parametrize("away", ["moved", "deleted", "replaced"])
def test_a_removed_store_acknowledges_nothing(serve, done, tmp_path, away) -> None:
    served = serve()
    with BufferClient(served.endpoint, timeout_s=3) as client:
        client.add_tasks([Task("t", "bench", 0)])
        group = client.lease("a", 0, GroupPlan(1)).group_id
        store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
        if away == "deleted":
            shutil.rmtree(store)
        else:
            store.rename(elsewhere)
        if away == "replaced":
            shutil.copytree(elsewhere, store)
        with pytest.raises(BufferUnavailable):
            client.put(group, "a", done())
    assert served.process.wait(timeout=20) == 2
    log = (tmp_path / "store.log").read_text()
    assert log.count("was moved or deleted while it was served") == 1
    assert len(log.splitlines()) < 60
