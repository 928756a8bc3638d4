"""A running average of the weights that are trained: the teacher of methods that learn from an
average of themselves."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

DECAY = 0.999
"""The average's decay, if an algorithm has no `average_decay`."""


class AveragedWeights:
    """Averages parameters exponentially, in float32: mean ← decay · mean + (1 − decay) · weights
    after each step. The average begins with the present weights. Frozen parameters are left out."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], decay: float = DECAY) -> None:
        self.decay = decay
        self._parameters = {name: weights for name, weights in named if weights.requires_grad}
        self.means = {name: w.detach().float().clone() for name, w in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Takes in the weights after a step."""
        for name, weights in self._parameters.items():
            self.means[name].lerp_(weights.detach().float(), 1 - self.decay)

    def load(self, means: Mapping[str, Tensor]) -> None:
        """Restores averages that were saved, by their names."""
        for name, mean in self.means.items():
            mean.copy_(means[name])

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Puts the averages in the place of the weights in a `with` block. Only for passes that
        need no gradient."""
        held = {name: weights.data for name, weights in self._parameters.items()}
        for name, weights in self._parameters.items():
            weights.data = self.means[name].to(weights.dtype)
        try:
            yield
        finally:
            for name, weights in self._parameters.items():
                weights.data = held[name]
