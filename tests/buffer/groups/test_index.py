"""The index in memory is what the store implies."""

from r3l.records import GroupPlan


def test_the_index_can_be_rebuilt_from_the_store(desk, tasks, done):
    desk.add(tasks(9))
    desk.add(tasks(2, "e"), "eval", "x")
    evaluation = desk.lease().group_id
    desk.put(evaluation, done())
    for _ in range(3):
        desk.complete()
    desk.draw(1)
    desk.lease(plan=GroupPlan(2))
    before = vars(desk.index)
    desk.reopen()
    for name, value in vars(desk.index).items():
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
