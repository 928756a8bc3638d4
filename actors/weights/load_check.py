"""Whether an engine holds the weights that were published, after a load.

workers: parameters without weights, sums over what they hold ─► LoadCheck ─► EngineSick
publisher: sums over what it published (in the manifest) ──────────┘
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from r3l.errors import EngineSick
from r3l.process.notices import notice
from r3l.weights.manifest import Manifest
from r3l.weights.sums import Sums, added


class LoadCheck:
    """Compares loads with what was published, for all engines of one actor process.

    Some engines hold weights in a form that cannot be compared (numbers that are computed from the
    weights, a share that several workers hold). So if the first loads of two engines differ and
    none ever fitted, loads are no longer compared, and people are told.
    """

    def __init__(self) -> None:
        self.fitted = False
        """Whether any load fitted, so that loads of this model can be compared."""
        self._differed = 0

    def check(self, manifest: Manifest, workers: Iterable[str]) -> None:
        """Raise EngineSick unless all parameters were loaded and are what was published;
        `workers`: what WeightReport of each worker says."""
        reports = [json.loads(report) for report in workers]
        if missing := sorted({name for report in reports for name in report["missing"]}):
            raise EngineSick(
                f"weights {manifest.version} are partial: {len(missing)} parameters have none, "
                f"such as {missing[0]}",
                cause="weights_partial",
            )
        held = _together([report["sums"] for report in reports])
        if held is None or manifest.sums is None:
            return
        if held == manifest.sums:
            self.fitted = True
            return
        self._differed += not self.fitted
        if self._differed < 2:
            raise EngineSick(
                f"its weights {manifest.version} are not those that were published",
                cause="weights_differ",
            )
        if self._differed == 2:
            notice(
                "weights of two engines differ from those that were published; either this model "
                "does not allow the comparison, which is given up, or this machine is faulty"
            )


def _together(workers: list[dict[str, Any] | None]) -> Sums | None:
    """Sums over a model whose parameters are spread over workers; those that every worker has
    alike count once. None if a worker cannot say."""
    if not workers or any(sums is None for sums in workers):
        return None
    by_name: dict[str, list[Sums]] = {}
    for sums in workers:
        for name, (first, second) in (sums or {}).items():
            by_name.setdefault(name, []).append((first, second))
    return added(
        one
        for several in by_name.values()
        for one in (set(several) if len(several) == len(workers) > len(set(several)) == 1
                    else several)
    )  # fmt: skip
