"""Rebuilds a published version of the weights from a run's journal, as a model folder.

journal ─► weights ─► checks: manifest's digest, fingerprints in the store ─► model folder
"""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from buffer.storage.store import Store
from buffer.storage.store_path import has_store
from buffer.tools import store_reads
from r3l.errors import UserError
from r3l.files.new_folder import new_folder
from r3l.models.model_folder import check_model_folder
from r3l.models.model_path import model_path
from r3l.run.config import RunConfig
from r3l.run.files.run_folder import JOURNAL, RunFolder
from r3l.weights.journal import Journal
from r3l.weights.low_rank import base_tensors, check_base, merged_into
from r3l.weights.manifest import Bytes, Manifest, digest_of

WEIGHTS = ("*.safetensors", "*.bin", "*.index.json")


def write_version(run: Path, config: RunConfig, version: int, out: Path) -> str:
    """Writes a version of the weights as a Hugging Face folder. Returns a line about the checks. If
    the rebuild or a check fails, raises UserError and writes nothing."""
    model = model_path(config.model)
    check_model_folder(model, f"model {config.model}", weights=False)
    manifest, data = Journal(run / JOURNAL).rebuild(version)
    tensors = tensors_of(manifest, data)
    if manifest.adapters:
        check_base(manifest, model)
        tensors = dict(merged_into(base_tensors(model), tensors, manifest.adapters))
    checked = check_fingerprints(RunFolder(run).store, manifest)
    with new_folder(out, "--out") as building:
        _copy_but_weights(model, building, {str(tensor.dtype) for tensor in tensors.values()})
        save_file(tensors, building / "model.safetensors", metadata={"format": "pt"})
    return f"version {version}, digest {manifest.digest}: {checked}"


def tensors_of(manifest: Manifest, data: Bytes) -> dict[str, Tensor]:
    """Returns the tensors of a manifest, keyed by name. They are views of `data`."""
    whole, tensors = torch.from_numpy(data), {}
    for entry in manifest.layout.tensors:
        flat = whole[entry.offset : entry.offset + entry.nbytes]
        tensors[entry.name] = flat.view(getattr(torch, entry.dtype)).view(entry.shape)
    return tensors


def check_fingerprints(folder: Path, manifest: Manifest) -> str:
    """Compares a version's weights with the fingerprints in a store. Returns the result as text.
    Raises UserError if a fingerprint belongs to other weights."""
    if not has_store(folder):
        return f"no store in {folder} to compare it with"
    with Store(folder, read_only=True) as store:
        prints = store_reads.fingerprints(store, manifest.version)
    digests = {group: set(map(digest_of, its)) - {""} for group, its in prints.items()}
    same = [group for group, its in digests.items() if manifest.digest in its]
    others = {group: its - {manifest.digest} for group, its in digests.items()}
    if unlike := {group: min(its) for group, its in others.items() if its}:
        group, weights = next(iter(unlike.items()))
        raise UserError(
            f"version {manifest.version}: the learner went back to a checkpoint and produced this "
            f"version twice; the journal has weights {manifest.digest}, but {len(unlike)} groups "
            f"(for example {group}) were sampled with weights {weights}"
        )
    return f"{len(same)} of {len(prints)} groups sampled with this version carry its fingerprint"


def _copy_but_weights(model: Path, to: Path, dtypes: set[str]) -> None:
    """Copies the files of a model folder except the weights. If `dtypes` has one entry, writes that
    dtype to `config.json`."""
    for path in model.iterdir():
        if path.is_file() and not any(path.match(kind) for kind in WEIGHTS):
            shutil.copyfile(path, to / path.name)
    config = json.loads((to / "config.json").read_bytes())
    for key in config.keys() & {"dtype", "torch_dtype"} if len(dtypes) == 1 else ():
        config[key] = min(dtypes).removeprefix("torch.")
    (to / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
