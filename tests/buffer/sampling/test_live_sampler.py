"""The sampler of a service: one instance, with settings and state of its own, and named faults."""

import numpy as np
import pytest

from buffer.sampling import live_sampler, samplers
from buffer.sampling.live_sampler import STATE_LIMIT, LiveSampler
from r3l import codec
from r3l.errors import UserError
from r3l.run.settings.buffer_sampling import SamplerConfig
from tests.buffer.sampling.test_samplers import MANY

TEXT = """
import logging
from functools import cached_property
from typing import Any, ClassVar
import numpy as np
from buffer.sampling.samplers import Pick, Sampler

class Plain(Sampler):
    temperature: float = 1.5
    kinds: ClassVar[int] = 3
    _hidden: int = 0
    def pick(self, candidates, count, source):
        return [Pick(row, weight=self.temperature) for row in candidates[:count]]

class Remembers(Plain):
    def __init__(self, config):
        super().__init__(config)
        self.seen = []
    def pick(self, candidates, count, source):
        self.seen += [row.group_id for row in candidates[:count]]
        return super().pick(candidates, count, source)

class Saves(Remembers):
    def state(self):
        return {"seen": self.seen}
    def restore(self, state):
        self.seen = list(state["seen"])

class Generator(Plain):
    def __init__(self, config):
        super().__init__(config)
        self.rng = np.random.default_rng(0)
    def pick(self, candidates, count, source):
        self.rng.random()
        return super().pick(candidates, count, source)

class Cached(Plain):
    @cached_property
    def table(self):
        return [1, 2]
    def pick(self, candidates, count, source):
        assert self.table
        return super().pick(candidates, count, source)

class Big(Saves):
    def state(self):
        return {"text": "x" * (2 << 20)}

class Strange(Saves):
    def state(self):
        return {"seen": object()}

class Fails(Plain):
    def pick(self, candidates, count, source):
        return [Pick(row) for row in candidates if row.nothing]

class Foreign(Plain):
    def pick(self, candidates, count, source):
        return [Pick(candidates[0].with_changes(group_id="g9"))]

class Twice(Plain):
    def pick(self, candidates, count, source):
        return [Pick(candidates[0])] * count

class Rows(Plain):
    def pick(self, candidates, count, source):
        return candidates[:count]

class Few(Plain):
    def pick(self, candidates, count, source):
        return [Pick(candidates[0])]

class NoPick(Sampler):
    pass

class Alpha(Plain):
    alpha: float = 2.0

class State(Plain):
    state: int = 2

class OfClass(Plain):
    seen = []
    def pick(self, candidates, count, source):
        self.seen.append(len(candidates))
        return super().pick(candidates, count, source)

class Weighs(Plain):
    weight: Any = 1.0
    chance: Any = 1.0
    def pick(self, candidates, count, source):
        return [Pick(row, self.chance, self.weight) for row in candidates[:count]]

class Names(Plain):
    def pick(self, candidates, count, source):
        return [Pick(row.group_id) for row in candidates[:count]]

class Nothing(Plain):
    def pick(self, candidates, count, source):
        pass

class Leaves(Plain):
    def pick(self, candidates, count, source):
        raise SystemExit(3)

class Forever(Plain):
    def pick(self, candidates, count, source):
        while True:
            pass

class Logs(Plain):
    log = logging.getLogger("a sampler that logs")
    library = np
    def __init__(self, config):
        super().__init__(config)
        self.helper = Helper()
    def pick(self, candidates, count, source):
        self.log.debug("%d candidates", len(candidates))
        self.helper.log.debug("table %s", self.helper.table)
        return super().pick(candidates, count, source)

class Helper:
    log = logging.LoggerAdapter(logging.getLogger("its helper"), {})
    def __init__(self):
        self.own_log = self.log.logger
    @cached_property
    def table(self):
        return [1, 2]

class Large(Plain):
    def __init__(self, config):
        super().__init__(config)
        self.numbers, self.by_name = [0.5, 1, None], {"a": [1, 2]}
    def pick(self, candidates, count, source):
        if len(candidates) == count:
            self.by_name["a"][1] = 2.0
        return super().pick(candidates, count, source)

class Slow(Plain):
    def __init__(self, config):
        super().__init__(config)
        self.numbers = Endless()

class Endless(list):
    def __iter__(self):
        while True:
            yield 1
"""


@pytest.fixture
def named(tmp_path):
    file = tmp_path / f"live_{tmp_path.name}.py"
    file.write_text(TEXT)

    def config(name, **own):
        return SamplerConfig(name=f"{file}:{name}", **own)

    return config


def pick(sampler, count=2):
    return sampler.pick(MANY, count, samplers.random_source(0, 0))


def test_a_class_declares_settings_of_its_own_and_gets_their_values(named):
    assert pick(LiveSampler(named("Plain")))[0].weight == 1.5
    assert pick(LiveSampler(named("Plain", temperature=2)))[0].weight == 2.0
    assert pick(LiveSampler(named("Plain", own={"temperature": 3}, reuse=2)))[0].weight == 3.0


@pytest.mark.parametrize(
    ("own", "rule"),
    [
        ({"temprature": 1}, "buffer.sampler.temprature: unknown; did you mean temperature"),
        ({"temperature": "hot"}, "buffer.sampler.temperature: must be a number"),
        ({"_hidden": 1}, "buffer.sampler._hidden: unknown"),
        ({"kinds": 1}, "buffer.sampler.kinds: unknown"),
    ],
)
def test_a_wrong_setting_of_a_users_class_is_named(named, own, rule):
    with pytest.raises(UserError, match=rule.replace("; did you mean", ".*")) as refused:
        LiveSampler(named("Plain", **own))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["Alpha", "State"])
def test_a_setting_may_not_hide_what_every_sampler_has(named, name):
    with pytest.raises(
        UserError, match=f"{name}.{name.lower()} has the name of an attribute or setting"
    ):
        LiveSampler(named(name))


def test_a_sampler_of_r3l_has_no_settings_of_its_own():
    with pytest.raises(ValueError, match="fifo has no settings of its own"):
        SamplerConfig(name="fifo", own={"temperature": 2})
    with pytest.raises(ValueError, match="temperature"):
        SamplerConfig(name="fifo", temperature=2)


def test_one_instance_picks_as_long_as_the_service_lives_and_its_state_comes_back(named):
    live = LiveSampler(named("Saves"))
    live.restore(None)
    assert live.keeps_state and (pick(live), pick(live))
    saved = live.saved()
    again = LiveSampler(named("Saves"))
    again.restore(saved)
    pick(again, 1)
    assert codec.unpack(again.saved(), STATE_LIMIT)["state"]["seen"] == [
        MANY[i].group_id for i in (0, 1, 0, 1, 0)
    ]


def test_a_pick_that_was_undone_leaves_no_state(named):
    live = LiveSampler(named("Saves"))
    pick(live)
    saved = live.saved()
    pick(live)
    live.restore(saved)
    assert live.saved() == saved
    live.restore(None)
    assert codec.unpack(live.saved(), STATE_LIMIT)["state"] == {"seen": []}


@pytest.mark.parametrize(
    ("name", "attribute"), [("Remembers", "seen"), ("Generator", "rng"), ("OfClass", "seen")]
)
def test_state_that_a_restart_would_lose_is_refused(named, name, attribute):
    live = LiveSampler(named(name))
    with pytest.raises(UserError, match=f"pick changed self.{attribute}, which a restart"):
        pick(live)


@pytest.mark.parametrize("name", ["Plain", "Cached", "Logs"])
def test_what_only_reads_itself_keeps_no_state(named, name):
    live = LiveSampler(named(name))
    assert pick(live) and pick(live) and live.saved() is None


def test_the_state_of_another_sampler_is_said_to_be_lost(named, capsys):
    live = LiveSampler(named("Saves"))
    pick(live)
    for other in (named("Plain"), SamplerConfig(name="uniform")):
        LiveSampler(other).restore(live.saved())
        assert "r3l-notice: the state of the sampler " in capsys.readouterr().err


@pytest.mark.parametrize("name", ["Big", "Strange"])
def test_state_that_cannot_be_stored_is_refused(named, name):
    live = LiveSampler(named(name))
    with pytest.raises(UserError, match="state: cannot be stored"):
        live.saved()


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("Twice", "returned group g0000000000 twice; it must return 2 picks"),
        ("Foreign", "returned group g9, which is not a candidate"),
        ("Rows", "which is not a Pick"),
        ("Few", "returned 1 picks; it must return 2"),
        ("Names", "returned Pick.*, which is not a Pick of a row"),
        ("Nothing", "raised TypeError: it returned None, which is not a list of picks"),
        ("Leaves", r"raised SystemExit: 3 \(.*live_.*\.py:\d+\)"),
        ("Fails", r"raised AttributeError: .*nothing.* \(.*live_.*\.py:5\d\)"),
    ],
)
def test_a_fault_of_a_users_sampler_is_named_in_one_line(named, name, why):
    with pytest.raises(UserError, match=why) as refused:
        pick(LiveSampler(named(name)))
    assert f":{name}: pick " in str(refused.value) and "\n" not in str(refused.value)


def test_a_class_without_pick_is_refused_when_it_is_made(named):
    with pytest.raises(UserError, match="NoPick: making it raised TypeError"):
        LiveSampler(named("NoPick"))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, "heavy", None, [1.0]])
@pytest.mark.parametrize(("setting", "field"), [("weight", "weight"), ("chance", "probability")])
def test_a_weight_that_no_loss_can_use_is_refused(named, setting, field, value):
    with pytest.raises(UserError, match=f"gave group g0000000000 the {field} .*a number from 0 to"):
        pick(LiveSampler(named("Weighs", own={setting: value})))


def test_weights_become_plain_numbers(named):
    [first, _] = pick(LiveSampler(named("Weighs", own={"weight": np.float32(0.5), "chance": 1})))
    assert (type(first.weight), first.weight, type(first.probability)) == (float, 0.5, float)


def test_a_pick_that_does_not_end_is_refused_in_time_and_the_next_one_is_made(named, monkeypatch):
    monkeypatch.setattr(live_sampler, "LIMIT_S", 0.1)
    live = LiveSampler(named("Forever"))
    for _ in range(2):
        with pytest.raises(UserError, match=r"pick raised TimeoutError: took longer than 0\.1 s"):
            pick(live)


def test_the_look_at_a_samplers_attributes_is_within_the_limit(named, monkeypatch):
    monkeypatch.setattr(live_sampler, "LIMIT_S", 0.1)
    with pytest.raises(UserError, match=r"pick raised TimeoutError: took longer than 0\.1 s"):
        pick(LiveSampler(named("Slow")))


def test_a_number_that_is_changed_deep_in_a_list_is_seen(named):
    live = LiveSampler(named("Large"))
    assert pick(live)
    with pytest.raises(UserError, match=r"pick changed self\.by_name, which a restart"):
        live.pick(MANY[:2], 2, lambda: np.random.default_rng(0))
