"""The bill that rank 0 keeps."""

from pathlib import Path

import pytest

from buffer import BufferStats
from learner.metrics import bill_keeper
from learner.metrics.bill_keeper import BillKeeper
from learner.metrics.tags import check_tag
from r3l.errors import UserError
from r3l.run.config import load
from r3l.run.files.run_folder import RunFolder


@pytest.fixture(autouse=True)
def measured(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """What this process has used: 8 s on the CPU in 20 s."""
    values = {"cpu_s": 8.0, "age_s": 20.0}
    monkeypatch.setattr(bill_keeper, "cpu_seconds", lambda: values["cpu_s"])
    monkeypatch.setattr(bill_keeper, "age_s", lambda: values["age_s"])
    return values


def stats(sampled: float = 100, started: float = 1000, **actors: float) -> BufferStats:
    numbers = {"generated_tokens": sampled, "prompt_tokens": 900.0, "cpu_s": 4.0, "gpu_s": 6.0}
    of = {"actor-0.a": numbers} | {name: {"generated_tokens": n} for name, n in actors.items()}
    return BufferStats(actors=of, cpu_s=1.0, started=started)


def keeper(run: Path, *overrides: str, gpus: int = 0) -> BillKeeper:
    return BillKeeper(RunFolder(run), load(None, list(overrides)), gpus=gpus)


def test_the_bill_adds_up_actors_buffer_and_ranks(tmp_path: Path) -> None:
    kept = keeper(tmp_path, "cost.per_million_tokens=1000", gpus=2)
    rows = {"learner/trained_tokens": 3e6}  # most of them are prefixes that rows share
    kept.add_step(rows | {"learner/held_tokens": 50.0, "learner/cpu_s": 30.0})
    kept.add_step({"learner/held_tokens": 50.0, "learner/cpu_s": 40.0})
    metrics = kept.update(stats())
    for tag in metrics:
        check_tag(tag)
    assert metrics == {
        "bill/sampled_tokens": 100, "bill/read_tokens": 900, "bill/trained_tokens": 100,
        "bill/cpu_s": 4 + 1 + 40, "bill/gpu_s": 6 + 2 * 20, "bill/hours": 20 / 3600,
        "bill/amount": 1.1,
    }  # fmt: skip


def test_restarts_and_earlier_launches_are_added_and_nothing_counts_twice(tmp_path: Path) -> None:
    first = keeper(tmp_path)
    first.add_step({"learner/held_tokens": 50.0})
    for sampled in (40, 100):
        first.update(stats(sampled), write=True)
    again = keeper(tmp_path)  # the learner was restarted, then the buffer, then an actor
    again.add_step({"learner/held_tokens": 50.0})
    again.update(stats(120, started=2000))
    used = again.update(stats(0, started=2000, **{"actor-0.b": 30}))
    assert (used["bill/sampled_tokens"], used["bill/trained_tokens"]) == (150, 100)
    assert used["bill/cpu_s"] == 2 * 8 + 2 * 1 + 4 and used["bill/hours"] == 40 / 3600


def test_a_buffer_within_the_learner_counts_once(tmp_path: Path) -> None:
    kept = BillKeeper(RunFolder(tmp_path), load(None), served=False)
    assert kept.update(BufferStats(cpu_s=7.0))["bill/cpu_s"] == 8


def test_a_bill_is_written_at_each_step_and_else_only_now_and_then(tmp_path: Path) -> None:
    kept, folder = keeper(tmp_path), RunFolder(tmp_path)
    kept.update(stats(1))
    kept.update(stats(2))
    assert folder.bill()["actor-0.a"].sampled == 1
    kept.update(stats(3), write=True)
    assert folder.bill()["actor-0.a"].sampled == 3


def test_a_full_disk_is_reported_and_training_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert keeper(tmp_path / "gone").update(stats())["bill/sampled_tokens"] == 100
    assert "bill.json could not be written" in capsys.readouterr().err


def test_a_damaged_bill_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "bill.json").write_text("{")
    with pytest.raises(UserError, match=r"bill\.json: damaged .*; delete it; the bill then begins"):
        keeper(tmp_path)


def test_a_budget_is_spent_when_one_of_its_limits_is_reached(tmp_path: Path) -> None:
    kept = keeper(tmp_path, "budget.tokens=1000", "budget.hours=1")
    kept.update(stats(99))
    assert kept.spent == ""
    kept.update(stats(100))
    assert kept.spent == "budget.tokens=1000 is used up (1000)"
