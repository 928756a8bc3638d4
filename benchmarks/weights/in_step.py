"""What publishing takes of a step: with a copy that is published beside the next step, and without.

Both publish the same versions of the same weights in turn, in one process.
"""

import statistics
import time
from collections import defaultdict

import torch

from learner.publishing.publisher import WeightPublisher
from learner.publishing.weight_copy import WeightCopy

LAYERS = 24
CHANGED = 0.02  # share of the elements that a step moves
NEVER = 1 << 30


class NoCopy(WeightCopy):
    """Has never room, so that a version is published inside the step."""

    def reserve(self, size: int, *, of_gpu: bool) -> bool:
        return False


def model_like(gb: float, device: str) -> list[tuple[str, torch.Tensor]]:
    """A float32 state whose published set has `gb` GB in bfloat16."""
    torch.manual_seed(0)
    elements = int(gb * 1e9 / 2 / LAYERS)
    return [(f"layers.{n}", torch.randn(elements, device=device) / 50) for n in range(LAYERS)]


def step(weights: list[tuple[str, torch.Tensor]]) -> None:
    """Moves CHANGED of the elements to a neighbouring number in bfloat16."""
    for _, tensor in weights:
        moved = torch.rand_like(tensor) < CHANGED
        tensor.mul_(1 + moved / 100)


def measure_in_step(gb: float, repeat: int) -> None:
    """Prints the seconds per GB inside a step and beside it, medians of `repeat` versions."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = model_like(gb, device)
    shapes = [(name, tensor.dtype, tuple(tensor.shape)) for name, tensor in weights]
    beside, within = (WeightPublisher("tcp://127.0.0.1:0", anchor_every=NEVER) for _ in range(2))
    within._copy = NoCopy()
    took: dict[str, list[float]] = defaultdict(list)
    for version in range(1, repeat + 2):
        step(weights)
        for publisher, name in ((within, "within"), (beside, "copy")):
            began, cpu = time.monotonic(), time.process_time()
            publisher.begin(version, iter(weights), torch.bfloat16, shapes)
            took[f"{name} cpu"].append((time.process_time() - cpu) / gb)
            took[name].append((time.monotonic() - began) / gb)
            assert publisher.published(600)
        took["beside"].append(beside.metrics["publish_s"] / gb)
        same = zip(within._chunks, beside._chunks, strict=True)
        assert all(a and b and a.checksum == b.checksum for a, b in same), "other bytes"
    first = {name: values[0] for name, values in took.items()}
    middle = {name: statistics.median(values[1:]) for name, values in took.items()}
    for what, each in (("whole", first), (f"{CHANGED:.0%} changed", middle)):
        print(
            f"{what}: {each['within']:.3f} s/GB in the step without a copy, {each['copy']:.3f} "
            f"with one ({each['copy'] / each['within']:.2f} x), then {each['beside']:.3f} beside "
            f"the next step; CPU s/GB in the step {each['within cpu']:.3f} and "
            f"{each['copy cpu']:.3f} ({device}, {gb:g} GB)"
        )
    for publisher in (beside, within):
        publisher.close()
