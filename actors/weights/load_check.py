"""Checks after each load that an engine holds the published weights.

worker: names of parameters that got no weights, sums over its weights ─► LoadCheck ─► EngineSick
publisher: sums over the published weights (in the manifest) ─────────────────┘        if wrong
"""

import json
from collections.abc import Iterable
from typing import Any

from r3l.errors import EngineSick
from r3l.notices import notice
from r3l.weights.manifest import Manifest
from r3l.weights.sums import Sums, add_sums


class LoadCheck:
    """Compares the published weights with the weights that an actor's engines loaded.

    Some engines cannot be compared. They store numbers computed from the weights, or hold a
    part of the weights in several workers but not in all. So if the first two comparisons fail,
    comparing stops with a notice.
    """

    def __init__(self) -> None:
        self.fitted = False
        """Whether any load has matched, which shows that this model's loads can be compared."""
        self._differed = 0

    def check(self, manifest: Manifest, workers: Iterable[str]) -> None:
        """Raises EngineSick if a parameter was not loaded, or if the weights differ from the
        published weights. `workers`: the reports of vllm_backend.WeightReport."""
        reports = [json.loads(report) for report in workers]
        if missing := sorted({name for report in reports for name in report["missing"]}):
            raise EngineSick(
                f"weights {manifest.version} are partial: {len(missing)} parameters are "
                f"missing, such as {missing[0]}",
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
                f"the engine's weights {manifest.version} differ from the published weights",
                cause="weights_differ",
            )
        if self._differed == 2:
            notice(
                "the weights of two engines differ from the published weights, so the comparison "
                "stops; this model cannot be compared, or this machine is faulty"
            )


def _together(workers: list[dict[str, Any] | None]) -> Sums | None:
    """Adds up the workers' sums. A parameter with equal sums in every worker counts once. Returns
    None if a worker has no sums."""
    if not workers or any(sums is None for sums in workers):
        return None
    by_name: dict[str, list[Sums]] = {}
    for sums in workers:
        for name, (first, second) in (sums or {}).items():
            by_name.setdefault(name, []).append((first, second))
    return add_sums(
        total
        for totals in by_name.values()
        for total in (totals[:1] if totals == totals[:1] * len(workers) else totals)
    )
