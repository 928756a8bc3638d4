"""What is typed into a notebook: the examples of docs/buffer.md, and what people get wrong."""

import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from buffer import BufferClient
from buffer.tools import store_reads
from buffer.wire.curve_keys import generate
from r3l.errors import LimitExceeded, NotFound, RecordError
from r3l.records import GroupPlan, Task
from r3l.run.settings.buffer_sampling import SamplerConfig

pytestmark = pytest.mark.system


@pytest.fixture
def served(serve, tasks, done):
    """A service with two trained groups."""
    served = serve("tcp://127.0.0.1:0", "learner.groups_per_step=2")
    with BufferClient(served.endpoint) as client:
        client.add_tasks(tasks(3))
        for reward in (0.25, 0.75):
            client.put(client.lease("a", 0, GroupPlan(1)).group_id, "a", done(reward=reward))
        client.commit(client.draw(2, 0).draw_id, 1, 1)
    return served


@pytest.fixture
def endpoint(served):
    return served.endpoint


def test_the_examples_of_the_page_run_unchanged(served, capsys):
    page = (Path(__file__).parents[3] / "docs" / "buffer.md").read_text("utf-8")
    online, own, surprise, insert, offline = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    exec(online.replace("tcp://127.0.0.1:5555", served.endpoint), {})
    printed = capsys.readouterr().out
    assert "trained=2" in printed and "g0000000002 [0.75] [-1]" in printed
    names = {}
    exec(own, names)
    ready = [SimpleNamespace(contrast=contrast) for contrast in (0.1, 0.9, 0.5)]
    picks = names["MostContrast"](SamplerConfig()).pick(ready, 2, None)
    assert [pick.row.contrast for pick in picks] == [0.9, 0.5]
    exec(surprise, names)
    rows = [SimpleNamespace(priority=priority) for priority in (None, 9.0, 0.0)]
    sampler = names["Surprise"](SamplerConfig())
    [pick] = sampler.pick(rows, 1, lambda: np.random.default_rng(0))
    assert pick.row.priority == 9.0 and sampler.temperature == 1.0
    exec(offline.replace("17", "1").replace("runs/demo/buffer", str(served.folder)), names)
    assert names["best"]["reward"] == 0.75 and "task_id=" in capsys.readouterr().out
    assert len(names["groups"]) == 2 and not names["evicted"]
    exec(insert, {"endpoint": served.endpoint})
    assert store_reads.group(names["store"], "g0000000003").source == "people"


def test_common_mistakes_are_refused_in_one_line(endpoint, tmp_path):
    _, keys, _ = generate(tmp_path)
    BufferClient(endpoint, keys=str(keys)).close()
    client = BufferClient(endpoint)
    (group,) = client.get(["g0000000001"])
    assert group.group_id == "g0000000001" and client.renew(["g7"], "a") == ("g7",)
    with pytest.raises(RecordError, match="group_ids"):
        client.get("g0000000001")  # an id is not a list of characters
    ids = ["g0000000002", "g0000000001", "g0000000002"]
    assert [group.group_id for group in client.get(ids)] == ids  # in the order asked for
    for count in (0, 4097):
        with pytest.raises(LimitExceeded, match=f"{count} groups requested.* 1 to 4096"):
            client.query(limit=count)
    with pytest.raises(NotFound, match="no group 'x'"):
        client.get(["x"])
    many = [Task(f"t{i}", "workshop", i, {"question": "x" * 100_000}) for i in range(800)]
    with pytest.raises(LimitExceeded, match="add_tasks"):
        client.add_tasks(many)
    client.close()
