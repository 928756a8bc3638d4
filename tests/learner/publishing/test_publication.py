"""One version that is published beside the next step."""

import threading

import pytest

from learner.publishing.publication import Publication
from r3l.errors import WeightsError


def test_its_metrics_are_there_once_it_has_ended() -> None:
    go_on = threading.Event()

    def work() -> dict[str, float]:
        assert go_on.wait(60)
        return {"publish_s": 1.0}

    publication = Publication(3, work, 3600)
    assert not publication.ended(0) and not publication.metrics
    go_on.set()
    assert publication.ended(60) and publication.metrics == {"publish_s": 1.0}


def test_a_failure_is_raised_by_name_each_time_it_is_asked_for() -> None:
    def work() -> dict[str, float]:
        raise MemoryError("no room")

    publication = Publication(3, work, 3600)
    for _ in range(2):
        with pytest.raises(WeightsError, match=r"weights 3: could not be published.*no room") as e:
            publication.ended(60)
        assert e.value.cause == "not_published"


def test_one_that_takes_longer_than_its_deadline_is_named() -> None:
    go_on = threading.Event()

    def work() -> dict[str, float]:
        go_on.wait(60)
        return {}

    publication = Publication(3, work, 0.0)
    with pytest.raises(WeightsError, match=r"weights 3: .*learner\.hang_s") as error:
        publication.ended(0.01)
    assert error.value.cause == "publication_overdue"
    go_on.set()
    assert publication.ended(60)  # in the end it was published
