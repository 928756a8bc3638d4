"""The index in memory is what the store implies."""

from buffer.indexes.drawable_groups import DrawableGroups
from buffer.indexes.sorted_keys import SortedKeys
from buffer.indexes.unfinished_groups import UnfinishedGroups
from r3l.records import GroupPlan


def _plain(value):
    """A value of an index without its classes, so that it can be compared."""
    if isinstance(value, SortedKeys):
        return list(value)
    if isinstance(value, UnfinishedGroups | DrawableGroups):
        return _plain(vars(value))
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return value


def test_the_index_can_be_rebuilt_from_the_store(desk, tasks, done):
    desk.add(tasks(9))
    desk.add(tasks(2, "e"), "eval", "x")
    evaluation = desk.lease().group_id
    desk.put(evaluation, done())
    for _ in range(3):
        desk.complete()
    desk.draw(1)
    desk.lease(plan=GroupPlan(2))
    assert desk.index.drawable.resting == 0
    before = _plain(vars(desk.index))
    desk.reopen()
    assert desk.index.drawable.resting == 0
    for name, value in _plain(vars(desk.index)).items():
        if name == "sampler_restored":  # of the service, whose sampler is new too
            continue
        if name == "last_seen":  # consumers cannot reach a service that is down
            assert value == {}
            continue
        kept = before[name]
        if isinstance(value, dict):
            kept = {k: v for k, v in kept.items() if v}
            value = {k: v for k, v in value.items() if v}
        assert value == kept, name
