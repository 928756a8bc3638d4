"""What rank 0 does around a step: waits for a batch, commits, publishes, reports."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import msgspec
import pytest

from buffer import BufferStats, Draw
from buffer.client.batch_memory import TOO_LARGE
from buffer.storage.stored_rows import DrawRow, Status
from learner import loop, rank0
from learner.checkpoint import RunState
from learner.loop import Training
from learner.metrics import reward_metrics
from learner.metrics.reporter import Reporter
from learner.rank0 import Rank0
from learner.step.draw_rows import DrawRows
from learner.watchdog import Watchdog
from r3l.algorithms.published.grpo import GRPO
from r3l.algorithms.published.r3 import R3
from r3l.algorithms.r3l import R3L
from r3l.codec import encode
from r3l.errors import (
    BufferUnavailable,
    DrawExpired,
    LimitExceeded,
    NotFound,
    TrainingStopped,
    UserError,
    WeightsError,
)
from r3l.records import Group
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.config import load
from r3l.run.files.run_folder import RunFolder
from r3l.training.step_loss import StepResult
from tests.r3l.training.fakes import explore_group, rows_of, thought

GROUP = explore_group((0.0, 1.0), (1.0, None), group_id="g5")
ROW = DrawRow(6, "r", "learner", 0, ("g5",), "fifo", 3.0)
NOW = (Status("drawn", "", {"complete": 1.0, "drawn": 3.0}),)
DRAW = Draw.read(ROW, NOW, [encode(GROUP)])
METRICS = {"learner/loss": 0.5, "learner/grad_norm": 1.0, "learner/step_s": 2.0}


class Service:
    """A buffer without groups, in which draw 7 has expired."""

    def __init__(self, calls: list[str]) -> None:
        self.calls = calls
        self.waited_for: Callable[[], None] = lambda: None
        self.draws = 0

    def draw(
        self, count: int, version: int, *, wait_s: float, explain: Callable[[str], object]
    ) -> None:
        self.draws += 1
        explain(f"0 of {count} groups are ready; waits for actors to finish {2 + self.draws}")
        self.waited_for()

    def commit(self, draw_id: int, step: int, version: int, attempts: Sequence[Any]) -> None:
        self.attempts = attempts
        if draw_id == 7:
            raise DrawExpired(f"draw {draw_id} expired", draw_id=draw_id)
        self.calls.append(f"commit {draw_id} as {step}")

    def discard(self, draw_id: int, cause: str) -> None:
        self.calls.append(f"discard {draw_id} {cause}")

    def get(self, group_ids: Sequence[str]) -> list[Group]:
        if "g404" in group_ids:
            raise NotFound("group g404 was evicted", group_id="g404")
        return [explore_group((1.0, 1.0), (None, None), group_id=name) for name in group_ids]

    def stats(self) -> BufferStats:
        metrics = ActorMetrics(generated_tokens=10, weight_version=1, agent=Counter(calls=4))
        actor = metrics.numbers() | {"seen_s": 1.0}
        return BufferStats(train={"complete": 2}, drops={"stale": 1}, actors={"a.1": actor})


class Trainer:
    """The only rank; its weights are nowhere."""

    world, rank, adapters = 1, 0, None

    def published_weights(self) -> tuple[Iterator[Any], list[Any]]:
        return iter(()), []


class Publisher:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    metrics: ClassVar = {"full_bytes": 8.0, "patch_bytes": 4.0, "patch_density": 0.5}

    def begin(self, version: int, *of: Any) -> dict[str, float]:
        self.calls.append(f"publish {version}")
        return {"copy_s": 0.25}

    def published(self, wait_s: float = 0.0) -> bool:
        return True


@pytest.fixture
def calls() -> list[str]:
    """What was asked of the buffer and the publisher."""
    return []


@pytest.fixture
def rank(calls: list[str], tmp_path: Path) -> Iterator[Rank0]:
    trainer: Any = Trainer()
    client: Any = Service(calls)
    publisher: Any = Publisher(calls)
    config = load(None, ["learner.groups_per_step=4", "buffer.max_staleness=2"])
    reporter = Reporter(tmp_path)
    rank = Rank0(trainer, client, publisher, reporter, config, ([], []), tmp_path)
    client.waited_for = rank.stop
    yield rank
    reporter.close()


def part(rank: Rank0, leads: bool = True) -> Training:
    """Rank 0's part in the run, or that of another rank."""
    nothing: Any = None
    first = rank if leads else None
    return Training(rank.trainer, nothing, rank.config, first, nothing, rank.run, RunState(0))


def finish(rank: Rank0, draw: Draw, version: int, result: StepResult) -> None:
    part(rank).finish_step(DrawRows(draw, [], {}), version, result)


def reported(run: Path) -> list[dict[str, Any]]:
    file = run / "progress.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line) for line in lines]


def test_a_waiting_learner_says_what_is_missing_and_from_whom(
    rank: Rank0,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(rank0, "SAY_S", -1.0)
    assert rank.draw(0) is None
    said = "r3l-notice: step 1: 0 of 4 groups are ready; waits for actors to finish 3\n"
    assert capsys.readouterr().err == said


def test_a_waiting_learner_says_the_same_words_once(
    rank: Rank0, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    service: Any = rank.client
    polls = [0]

    def waited_for() -> None:
        polls[0] += 1
        if polls[0] == 5:
            rank.stop()

    service.waited_for = waited_for
    monkeypatch.setattr(rank0, "SAY_S", -1.0)
    monkeypatch.setattr(rank0, "still_waiting", lambda trainer: None)
    assert rank.draw(0) is None
    assert capsys.readouterr().err.count("waits for actors") == 1
    assert polls == [5]


def test_a_learner_that_waits_for_attempts_which_all_fail_ends_with_the_causes(
    rank: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = BufferStats(
        drops={"no_trajectories": 40}, slot_drops={"base/environment_KeyError": 320}, puts=320
    )
    service: Any = rank.client
    service.waited_for = lambda: None
    monkeypatch.setattr(service, "stats", lambda: failed)
    monkeypatch.setattr(rank0, "DRAW_WAIT_S", -1.0)
    with pytest.raises(UserError, match=r"40 groups hold .*environment_KeyError \(320\)"):
        rank.draw(0)


def test_a_batch_that_does_not_fit_is_released_and_ends_the_run_with_the_sum(
    rank: Rank0, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_large(*asked: Any, **more: Any) -> None:
        raise LimitExceeded("draw 7: 4 groups have about 4 GB; free memory", cause=TOO_LARGE)

    client: Any = rank.client
    client.draw, client.release_draws = too_large, lambda who: calls.append(f"release {who}")
    training, counted = part(rank), list[dict[str, float]]()
    monkeypatch.setattr(rank.reporter, "scalars", lambda version, tags: counted.append(tags))
    monkeypatch.setattr(Training, "_begin", lambda self, version: None)
    monkeypatch.setattr(Training, "_end", lambda self, version: calls.append(f"end {version}"))
    with pytest.raises(TrainingStopped, match=r"^step 1: draw 7: .* 4 GB; free memory$") as caught:
        training.execute()
    assert calls == ["release learner", "end 0"] and rank.stopped
    assert counted == [{"learner/unfit_batches": 1.0}] and caught.value.cause == TOO_LARGE


def test_a_draw_that_is_refused_for_another_limit_ends_the_run_with_its_own_advice(
    rank: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*asked: Any, **more: Any) -> None:
        raise LimitExceeded("'learner' already holds 9 groups; release its draws first")

    client: Any = rank.client
    client.draw, client.release_draws = refused, lambda who: None
    assert rank.draw(4) is None and rank.stopped
    assert str(rank.unfit) == "step 5: 'learner' already holds 9 groups; release its draws first"
    assert not rank.counts["unfit_batches"]


def test_a_learner_that_waits_ends_once_its_weights_cannot_be_published(
    rank: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    def published(wait_s: float = 0.0) -> bool:
        raise WeightsError("weights 1: could not be published", cause="not_published")

    monkeypatch.setattr(rank.publisher, "published", published)
    for wait in (lambda: rank.draw(0), lambda: rank.end(1), lambda: part(rank)._publish(2)):
        with pytest.raises(WeightsError, match="could not be published"):
            wait()


def test_the_next_version_waits_for_the_one_before_and_says_so_to_the_other_ranks(
    rank: Rank0, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [False, False, True]
    monkeypatch.setattr(rank.publisher, "published", lambda wait_s: replies.pop(0))
    monkeypatch.setattr(rank0, "still_waiting", lambda trainer, doing: calls.append(doing))
    metrics = part(rank)._publish(2)
    assert calls == ["waiting until the last weights are published"] * 2 + ["publish 2"]
    assert metrics["weights/wait_s"] >= 0


def test_a_learner_that_waits_for_a_silent_buffer_is_alive_and_can_be_stopped(
    rank: Rank0, tmp_path: Path
) -> None:
    client: Any = rank.client
    with Watchdog(60.0, tmp_path) as watchdog:
        client.silent("learner waits for the buffer: no reply to commit")
        assert watchdog._last[0] == "learner waits for the buffer: no reply to commit"
        rank.stop()
        with pytest.raises(BufferUnavailable, match="stopped: learner waits"):
            client.silent("learner waits for the buffer: no reply to commit")
        rank.stopped = False
        client.waited_for = lambda: (rank.stop(), client.silent("no reply to draw"))
        assert rank.draw(0) is None


def test_a_learner_counts_the_hangs_of_the_learners_before_it(tmp_path: Path) -> None:
    RunFolder(tmp_path).add_hang("micro-batch 1 of 2", "itself")
    anything: Any = SimpleNamespace()
    assert Rank0(*[anything] * 4, load(None), ([], []), tmp_path).counts == {"hangs": 1}


def test_the_first_rates_of_a_restarted_learner_leave_out_what_was_generated_before(
    rank: Rank0, tmp_path: Path
) -> None:
    service: Any = rank.client
    service.set_version = service.release_draws = lambda _: 0
    rank.begin(RunState(3))
    finish(rank, DRAW, 4, StepResult(True, dict(METRICS)))
    [line] = reported(tmp_path)
    assert line["actor/generated_tokens"] == 10.0 and line["actor/tokens_per_s"] == 0.0


def test_steps_shorter_than_the_time_between_an_actors_reports_have_a_rate(
    rank: Rank0, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, service = [100.0], cast(Any, rank.client)

    def stats() -> BufferStats:  # an actor that samples 50 tokens/s and reports every 2 s
        metrics = ActorMetrics(generated_tokens=50 * int(now[0] - now[0] % 2))
        return BufferStats(actors={"a.1": metrics.numbers() | {"seen_s": 1.0}})

    service.stats = stats
    service.set_version = service.release_draws = lambda _: 0
    monkeypatch.setattr(rank0, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rank.begin(RunState(3))
    for step in range(4, 24):
        now[0] += 0.7 if step < 20 else 10
        finish(rank, DRAW, step, StepResult(True, dict(METRICS)))
    rates = [line["actor/tokens_per_s"] for line in reported(tmp_path)]
    assert all(25 <= rate <= 75 for rate in rates[3:16]) and rates[-1] == 50


def test_a_run_ends_after_the_step_in_which_its_budget_is_used_up(
    rank: Rank0, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.bill.config = load(None, ["budget.tokens=25"])
    finish(rank, DRAW, 2, StepResult(True, METRICS | {"learner/held_tokens": 8.0}))
    assert not rank.stopped
    finish(rank, DRAW, 3, StepResult(True, METRICS | {"learner/held_tokens": 8.0}))
    assert rank.stopped and not rank.interrupted and rank.draw(3) is None
    said = "budget.tokens=25 is used up (26); the run ends with a checkpoint"
    assert said in capsys.readouterr().err
    assert [line["bill/trained_tokens"] for line in reported(tmp_path)] == [8.0, 16.0]
    rank.end(3)
    assert RunFolder(tmp_path).bill()["a.1"].sampled == 10


def test_a_run_that_waits_ends_too_when_its_budget_is_used_up(
    rank: Rank0, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank.bill.config = load(None, ["budget.tokens=10"])
    service: Any = rank.client
    service.waited_for = lambda: None
    monkeypatch.setattr(rank0, "DRAW_WAIT_S", -1.0)
    assert rank.draw(0) is None and rank.stopped


def test_a_batch_is_committed_before_its_weights_are_published_and_then_reported(
    rank: Rank0, calls: list[str], tmp_path: Path
) -> None:
    rank.waited_s = 2.0
    made = DrawRows(DRAW, rows_of(DRAW.groups, GRPO(kl_coef=0)), {})
    part(rank).finish_step(made, 2, StepResult(True, dict(METRICS), out_of_memory=1))
    assert calls == ["commit 6 as 2", "publish 2"]
    service: Any = rank.client
    assert [(one.group_id, one.slot) for one in service.attempts] == [("g5", n) for n in (0, 1, 2)]
    assert rank.last_state.groups == ("g5",)
    [line] = reported(tmp_path)
    assert (line["kind"], line["step"]) == ("step", 2)
    expected = {
        "learner/loss": 0.5,
        "learner/idle_share": 0.5,
        "learner/out_of_memory": 1.0,
        "group/success_base": 0.5,
        "time/queue_s": 2.0,
        "weights/patch_density": 0.5,
        "weights/copy_s": 0.25,
        "weights/version_lag": 1.0,
        "buffer/expired_stale": 1.0,
        "actor/generated_tokens": 10.0,
    }
    assert {tag: line[tag] for tag in expected} == expected
    assert line["actor/tokens_per_s"] / line["agent/calls_per_s"] == pytest.approx(10 / 4)


def test_the_first_step_is_reported_at_once_and_published_after_the_evaluation_of_version_0(
    rank: Rank0, calls: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(stopped: object, waiting: object) -> list[Any]:
        calls.append(f"{len(reported(tmp_path))} reported, wait for {rank.evaluator.pending}")
        rank.evaluator.pending = {}
        return []

    rank.evaluator.pending = {"eval@0": 0}
    monkeypatch.setattr(rank.evaluator, "collect", list)
    monkeypatch.setattr(rank.evaluator, "wait", wait)
    finish(rank, DRAW, 1, StepResult(True, dict(METRICS)))
    assert calls == ["commit 6 as 1", "1 reported, wait for {'eval@0': 0}", "publish 1"]


def test_the_first_step_is_not_published_if_the_run_stops_during_the_evaluation_of_version_0(
    rank: Rank0, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank.evaluator, "collect", list)
    rank.evaluator.pending = {"eval@0": 0}
    rank.stop()
    finish(rank, DRAW, 1, StepResult(True, dict(METRICS)))
    assert calls == ["commit 6 as 1"]


@pytest.mark.parametrize(("version", "stopped"), [(1, False), (1, True), (2, False)])
def test_every_rank_meets_and_gathers_in_the_same_order(
    rank: Rank0, monkeypatch: pytest.MonkeyPatch, version: int, stopped: bool
) -> None:
    monkeypatch.setattr(rank.evaluator, "collect", list)
    done: list[str] = []
    monkeypatch.setattr(loop, "meet", lambda _: done.append("meet"))
    monkeypatch.setattr(loop, "drain", lambda _: done.append("gather"))
    if stopped:
        rank.evaluator.pending = {"eval@0": 0}
        rank.stop()
    orders = []
    for leads in (True, False):
        made = DrawRows(DRAW, [], {})
        part(rank, leads).finish_step(made, version, StepResult(True, dict(METRICS)))
        orders.append(done.copy())
        done.clear()
    assert orders[0] == orders[1] and "gather" in orders[0]


def test_groups_that_were_replaced_in_the_batch_count_in_its_metrics(
    rank: Rank0, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = ("g1", "g2", "g3", "g4", "g6", "g7", "g8", "g404", "g9")  # four a request
    draw = Draw.read(msgspec.structs.replace(ROW, replaced=names), NOW, [encode(GROUP)])
    finish(rank, draw, 1, StepResult(True, dict(METRICS)))
    assert "replaced groups: group g404 was evicted" in caplog.text
    [line] = reported(tmp_path)
    assert line["group/no_contrast"] == 5 / 6
    assert line["group/success_base"] == (1 + 5 * 2) / 12
    assert rank.last_state.groups == ("g5",)


def test_a_step_without_a_readable_reflection_is_reported_with_the_beginning_of_one(
    rank: Rank0, tmp_path: Path
) -> None:
    finish(rank, DRAW, 2, StepResult(True, dict(METRICS)))
    unread = (thought(0, text="Well, I think", cause="not_json"),)
    draw = Draw.read(ROW, NOW, [encode(msgspec.structs.replace(GROUP, reflections=unread))])
    finish(rank, draw, 3, StepResult(True, dict(METRICS)))
    read, line = reported(tmp_path)
    assert "unread" not in read and line["unread"] == "'Well, I think'"
    assert line["group/reflection_not_json"] == 1.0


def test_problems_of_earlier_steps_count_in_the_share_that_one_reply_earns(
    rank: Rank0, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_metrics, "FEW_PROBLEMS", 2)
    other = msgspec.structs.replace(GROUP, task=msgspec.structs.replace(GROUP.task, env="other"))
    finish(rank, DRAW, 2, StepResult(True, dict(METRICS)))
    finish(rank, Draw.read(ROW, NOW, [encode(other)]), 3, StepResult(True, dict(METRICS)))
    few, enough = reported(tmp_path)
    assert "group/one_reply" not in few and enough["group/one_reply"] == 1.0


def test_the_share_of_groups_without_retries_is_reported_if_the_algorithm_retries(
    rank: Rank0, tmp_path: Path
) -> None:
    plain = explore_group((0.0, 1.0), (), group_id="g6")
    row, now = msgspec.structs.replace(ROW, groups=("g5", "g6")), NOW * 2
    draw = Draw.read(row, now, [encode(GROUP), encode(plain)])
    finish(rank, draw, 2, StepResult(True, dict(METRICS)))
    rank.config = rank.config.model_copy(update={"algorithm": GRPO()})
    finish(rank, draw, 3, StepResult(True, dict(METRICS)))
    retries, none = reported(tmp_path)
    assert retries["group/without_retries"] == 0.5 and "group/without_retries" not in none


def test_the_parts_of_r3_are_reported_if_it_is_the_algorithm(rank: Rank0, tmp_path: Path) -> None:
    rank.config = rank.config.model_copy(update={"algorithm": R3()})
    finish(rank, DRAW, 2, StepResult(True, dict(METRICS)))
    rank.config = rank.config.model_copy(update={"algorithm": GRPO()})
    finish(rank, DRAW, 3, StepResult(True, dict(METRICS)))
    counted, none = reported(tmp_path)
    assert (counted["group/reflecting"], counted["group/ranked"]) == (0.0, 0.0)
    assert counted["recall/attempts"] == 0.0
    assert "group/reflecting" not in none and "group/ranked" not in none


def test_a_correction_is_verified_by_the_rule_of_the_run(rank: Rank0, tmp_path: Path) -> None:
    better = explore_group((0.0,), (0.5,), group_id="g5")
    draw = Draw.read(ROW, NOW, [encode(better)])
    for strict in (True, False):
        algorithm = R3L(verified_requires_success=strict)
        rank.config = rank.config.model_copy(update={"algorithm": algorithm})
        finish(rank, draw, 2, StepResult(True, dict(METRICS)))
    assert [line["group/verified_rate"] for line in reported(tmp_path)] == [0.0, 1.0]


def test_a_step_with_an_expired_draw_is_not_published(rank: Rank0, calls: list[str]) -> None:
    with pytest.raises(DrawExpired, match="draw 7 expired"):
        expired = Draw.read(msgspec.structs.replace(ROW, draw_id=7), NOW, [encode(GROUP)])
        finish(rank, expired, 1, StepResult(True, dict(METRICS)))
    assert calls == []


def test_a_skipped_batch_is_discarded_and_listed_with_its_groups(
    rank: Rank0, calls: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rank.skip_step(DRAW, 0, StepResult(False, METRICS | {"learner/loss": float("nan")}))
    assert calls == ["discard 6 not_finite"]
    line = json.loads((tmp_path / "skipped.jsonl").read_text())
    assert (line["draw"], line["loss"], line["groups"]) == (6, "nan", ["g5"])
    assert reported(tmp_path) == [] and rank.last_state.groups == ()
    said = "r3l-notice: step 1 skipped: loss nan, gradient norm 1.0; its groups are listed in"
    assert capsys.readouterr().err.startswith(said)
