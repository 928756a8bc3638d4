"""The table of tags: complete, current in the documentation, and asked at every write."""

from pathlib import Path

import pytest

from learner.metrics.reporter import Reporter
from learner.metrics.tags import METRICS, SECTIONS, check_tag, markdown

ROOT = Path(__file__).parent.parent.parent.parent


def test_the_metrics_page_is_written_from_the_table() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    assert page == markdown(), "run: python -m learner.metrics.tags > docs/metrics.md"


def test_every_metric_is_listed_once_under_a_known_prefix_with_unit_and_meaning() -> None:
    tags = [metric.tag for metric in METRICS]
    assert len(set(tags)) == len(tags)
    assert {tag.partition("/")[0] for tag in tags} == set(SECTIONS)
    assert all(metric.unit and metric.meaning for metric in METRICS)
    assert markdown().count("\n| `") == len(METRICS)


@pytest.mark.parametrize(
    "tag", ["group/failed_environment_OSError", "buffer/complete", "weights/failed_checksum"]
)
def test_a_tag_of_the_table_or_of_one_of_its_families_may_be_written(tag: str) -> None:
    check_tag(tag)


@pytest.mark.parametrize("tag", ["group/reward", "group/failed_", "learner/loss/2", "loss"])
def test_another_tag_is_refused_in_tests_and_written_with_a_warning_in_a_run(
    tag: str, tmp_path: Path
) -> None:
    check_tag.cache_clear()
    reporter = Reporter(tmp_path)
    with pytest.raises(UserWarning, match=f"unknown metric {tag}: add it"):
        reporter.step(1, {tag: 0.0}, {})
    with pytest.warns(UserWarning, match="unknown metric") as warned:
        check_tag(tag)
        check_tag(tag)
    assert len(warned) == 1
    reporter.step(1, {tag: 0.0}, {})
    reporter.close()
    assert f'"{tag}": 0.0' in (tmp_path / "progress.jsonl").read_text()


@pytest.mark.parametrize("tag", ["group/reward", "learner/loss/2"])
def test_a_users_algorithm_measures_what_it_likes_of_groups_and_of_its_loss(
    tag: str, tmp_path: Path
) -> None:
    check_tag.cache_clear()
    reporter = Reporter(tmp_path, own="mine.py:Mine")
    reporter.step(1, {tag: 0.0}, {})
    with pytest.raises(UserWarning, match="unknown metric buffer/mine"):
        reporter.step(2, {"buffer/mine": 0.0}, {})
    reporter.close()
