"""Merges published adapters into the base model's weights while generation continues.

    staged adapters ─┐
    model folder ────┴─► staged whole set ─► engine.load

The engine samples as fast as without adapters. Running requests continue with the newer version.
LoadCheck can compare the engine's weights with the merged set.
"""

from dataclasses import replace
from pathlib import Path

from actors.weights.staging import StagedWeights, staged_tensors
from r3l.weights.low_rank import adapted_names, base_tensors, check_base, merged_into
from r3l.weights.manifest import Layout, Manifest
from r3l.weights.sums import Sums, add_sums, only_dtype, sums_of


class Merger:
    """Merges adapters into the base `model`. If `dtype` is "auto", uses the learner's dtype."""

    def __init__(self, model: Path, dtype: str = "auto") -> None:
        self._model, self._dtype = model, dtype
        self._staged: StagedWeights | None = None
        self._sums: dict[str, Sums] = {}

    def whole(self, path: str, manifest: Manifest) -> tuple[str, Manifest]:
        """Merges the staged adapters in `path` into the base model. Without adapters, returns the
        arguments unchanged. Raises UserError if the adapters are for another base model."""
        import torch

        if manifest.adapters is None:
            return path, manifest
        check_base(manifest, self._model)
        names: set[str] | None = set(adapted_names(manifest))
        if self._staged is None:
            dtype = manifest.adapters.dtype if self._dtype == "auto" else self._dtype
            base = base_tensors(self._model)
            layout = Layout.of((name, dtype, tuple(t.shape)) for name, t in base)
            self._staged, names = StagedWeights(layout, manifest.origin), None
        adapters = dict(staged_tensors(path, manifest.layout))
        layout = self._staged.layout
        held = dict(staged_tensors(self._staged.path, layout, shared=True))
        base = base_tensors(self._model, names)
        for name, tensor in merged_into(base, adapters, manifest.adapters):
            held[name].copy_(tensor)  # overwrites the last merged set
            data = held[name].view(-1).view(torch.uint8).numpy()
            self._sums[name] = sums_of(data, str(held[name].dtype).removeprefix("torch."))
        sums = add_sums(self._sums.values()) if only_dtype(layout) else None
        checksums = (0,) * layout.num_chunks  # unused: these bytes are not transferred
        whole = replace(manifest, layout=layout, checksums=checksums, sums=sums, adapters=None)
        return self._staged.path, whole

    def close(self) -> None:
        if self._staged is not None:
            self._staged.close()
            self._staged = None
