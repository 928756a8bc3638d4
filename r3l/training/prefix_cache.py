"""Caches keys and values, so that a model reads each token of a conversation only once.

Axes: R rows, Q tokens to read, T tokens of context, H heads, E head size.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


class PrefixCache:
    """Stores keys and values in a tree of tokens. A transformers model uses it as its cache.

    Every token has a slot, which is found from the previous token's slot, so sequences share a
    common prefix. Slot 0 precedes all first tokens, and receives the writes of padding.
    """

    def __init__(self, config: Any, size: int, least: int, like: Tensor | None = None) -> None:
        """Allocates `size` bytes of keys and values, or more if `least` tokens need more. `like`: a
        tensor of their number format, on their device."""
        like = torch.zeros(0) if like is None else like
        heads, layers = config.num_key_value_heads, config.num_hidden_layers
        width = (
            getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        )
        self.heads, self.capacity = (
            heads,
            max(size // (2 * like.element_size() * layers * heads * width), least),
        )
        # A row for each head, so that selected rows need no transposing.
        shape = (self.capacity * heads, width)
        self.layers = [(like.new_zeros(shape), like.new_zeros(shape)) for _ in range(layers)]
        self.after: dict[tuple[int, int], int] = {}
        self.writing_RHQ = self.context_RHT = torch.zeros(0, dtype=torch.long)

    @property
    def room(self) -> int:
        """The number of tokens that can still be added."""
        return int(self.capacity) - 1 - len(self.after)

    def clear(self) -> None:
        """Forgets every token."""
        self.after.clear()

    def place(self, slot: int, token_ids: Sequence[int]) -> tuple[list[int], int]:
        """Assigns slots to tokens that follow the token in `slot`. Returns the slots, and how
        many of them already existed."""
        slots, known = [], len(self.after)
        for token in token_ids:
            slot = self.after.setdefault((slot, token), len(self.after) + 1)
            slots.append(slot)
        return slots, sum(slot <= known for slot in slots)

    def point(self, writing_RQ: Tensor, context_RT: Tensor) -> None:
        """Sets which slots the model's next pass writes to, and which slots it attends to."""
        head_H1 = torch.arange(self.heads, device=writing_RQ.device)[:, None]
        self.writing_RHQ = writing_RQ[:, None] * self.heads + head_H1
        self.context_RHT = context_RT[:, None] * self.heads + head_H1

    def update(self, key_RHQE: Tensor, value_RHQE: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Stores a layer's keys and values, and returns the context's keys and values [R, H, T, E].
        Every layer of the model calls this method."""
        keys, values = self.layers[layer]
        keys.index_copy_(0, self.writing_RHQ.flatten(), key_RHQE.flatten(0, 2))
        values.index_copy_(0, self.writing_RHQ.flatten(), value_RHQE.flatten(0, 2))
        context, shape = self.context_RHT.flatten(), self.context_RHT.shape
        return (
            keys.index_select(0, context).unflatten(0, shape),
            values.index_select(0, context).unflatten(0, shape),
        )
