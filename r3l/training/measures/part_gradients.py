"""Measures the gradient of each part of a loss by itself, for trainers that are asked to.

    parts of a micro-batch ─► one backward pass each ─► sums of the step ─► their norms

The sums of all parts add up to the gradient of the step.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


class PartGradients:
    """The gradient of each part of the loss, summed over one step in float32. `parameters`: the
    model's; only the trained ones are used. They must not be sharded, as they are under ZeRO 3."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.parameters = [weights for weights in parameters if weights.requires_grad]
        self.sums: dict[str, list[Tensor]] = {}

    def add(self, parts: Mapping[str, Tensor]) -> None:
        """Adds the gradients of a micro-batch's parts. Keeps the graph for a further backward."""
        for name, part in parts.items():
            held = self.of(name)
            if not part.requires_grad:
                continue
            found = torch.autograd.grad(part, self.parameters, retain_graph=True, allow_unused=True)
            for total, gradient in zip(held, found, strict=True):
                if gradient is not None:
                    total += gradient

    def of(self, name: str) -> list[Tensor]:
        """Returns the gradients of a part so far, in the order of `parameters`. They may be changed
        in place, such as summed over ranks."""
        if name not in self.sums:
            made = [torch.zeros_like(p, dtype=torch.float32) for p in self.parameters]
            self.sums[name] = made
        return self.sums[name]

    def norms(self) -> dict[str, float]:
        """Returns the global norm of each part's gradient, as metrics `grad_norm_<part>`."""
        return {
            f"grad_norm_{name}": float(nn.utils.get_total_norm(held))
            for name, held in self.sums.items()
        }
