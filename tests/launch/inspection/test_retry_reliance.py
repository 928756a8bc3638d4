"""What doctor says of the reliance of single retries."""

from pathlib import Path

from buffer.storage.store import Store
from buffer.storage.stored_rows import LedgerRow, TrainedAttempt
from launch.inspection.retry_reliance import STEPS, reliance_of_retries


def written(folder: Path, *steps: tuple[float | None, ...]) -> Path:
    """A store whose ledger has these steps, each with retries of these reliances."""
    with Store(folder / "buffer", map_gib=0.25) as store, store.write() as txn:
        for step, values in enumerate(steps, 1):
            attempts = tuple(
                TrainedAttempt("g1", f"g{step}", slot, 1.0, 0, 0.1, reliance=value)
                for slot, value in enumerate(values)
            )
            txn.put_step(LedgerRow(step, 1, step, ("g1",), 0.0, attempts))
    return folder / "buffer"


def test_the_median_is_told_and_the_retry_that_needed_its_guidance_most(tmp_path: Path) -> None:
    said = reliance_of_retries(written(tmp_path, (None, -0.5), (-3.0, 0.25)))
    assert said == (
        "reliance of the 3 retries that were trained last: median -0.50 nats a token, the lowest "
        "-3.00: group g2 slot 0"
    )


def test_of_many_retries_a_tenth_is_told_and_old_steps_are_left_out(tmp_path: Path) -> None:
    old, new = (-9.0,), tuple(-0.1 * n for n in range(10))
    said = reliance_of_retries(written(tmp_path, old, *[(None,)] * (STEPS - 1), new))
    assert "of the 10 retries" in said and "a tenth below -0.80, the lowest -0.90" in said


def test_a_run_without_retries_or_store_has_no_line(tmp_path: Path) -> None:
    assert reliance_of_retries(tmp_path) == ""
    assert reliance_of_retries(written(tmp_path, (None, None))) == ""
