"""Publishes one version at a time in a thread, while the learner makes its next step."""

import threading
import time
from collections.abc import Callable

from r3l.errors import WeightsError


class Publication:
    """Calls `work` in a thread. `work` publishes weights `version` and returns metrics. It may take
    `deadline_s` seconds."""

    def __init__(
        self, version: int, work: Callable[[], dict[str, float]], deadline_s: float
    ) -> None:
        self.version, self.deadline_s = version, deadline_s
        self.metrics: dict[str, float] = {}
        self._work = work
        self._failure: BaseException | None = None
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="publication", daemon=True)
        self._thread.start()

    def ended(self, wait_s: float) -> bool:
        """Returns whether the version is published, after at most `wait_s` seconds. Raises
        WeightsError if publishing failed or takes longer than the deadline."""
        self._thread.join(max(wait_s, 0.0))
        if self._failure is not None:
            raise WeightsError(
                f"weights {self.version}: could not be published ({self._failure!r:.500})",
                cause="not_published",
            ) from self._failure
        if self.over:
            return True
        if time.monotonic() > self._began + self.deadline_s:
            raise WeightsError(
                f"weights {self.version}: publishing them has taken more than {self.deadline_s:g} "
                "s, and the next version waits for it; raise learner.hang_s if the set or its "
                "journal needs longer",
                cause="publication_overdue",
            )
        return False

    @property
    def over(self) -> bool:
        """Whether its thread has ended, with or without a failure."""
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            self.metrics = self._work()
        except BaseException as error:  # it must not end with the thread unseen
            self._failure = error
