"""Compares a model folder's weights with what its index and its config.json say about them. Reads
only the headers of the files."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from r3l.errors import UserError
from r3l.files.user_file import read_text
from r3l.models.weight_shapes import check_shapes

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
"""The files by which transformers finds weights. SINGLE: all weights. INDEX: names the files of the
weights."""
_FEWER_BITS = ("F8", "F4", "F6_")
_WHOLE = ("I", "U")
"""Types of whole numbers. Only quantized weights have them."""
_PACKED = re.compile(r"\.(?:qweight|qzeros|weight_packed|SCB|absmax|quant_map)$")
Header = dict[str, dict[str, Any]]


def check_weights(folder: Path, called: str) -> None:
    """Raises UserError if weights are missing or damaged, or belong to another model than
    config.json says. `called`: how the message begins."""
    files = sorted(folder.glob("*.safetensors"))
    if not files and not (folder / INDEX).exists():
        _refuse_without(folder, called)
    found, read = {file.name: _header(file, called) for file in files}, {SINGLE}
    if (folder / INDEX).exists():
        index = _index(folder / INDEX, called)
        _compare(found, index, f"{called}: {INDEX}")
        read = set(index.values())
    elif SINGLE not in found:
        raise UserError(
            f"{called}: its weights are in {files[0].name}, but there is no {SINGLE} or {INDEX} "
            "to find them by; copy the whole folder, or save the model with save_pretrained"
        )
    tensors = {name: of for file in read for name, of in found[file].items()}
    shapes = {name: of["shape"] for name, of in tensors.items()}
    settings = _settings(folder)
    plain = not _quantized(settings) and not _fewer_bits(tensors)
    check_shapes(settings, shapes, called, plain=plain)


def check_trainable(folder: Path, called: str) -> None:
    """Raises UserError if the weights are quantized, since the learner cannot train them."""
    kind = quantization(_settings(folder))
    other = next(
        (f for f in ("quantize_config.json", "hf_quant_config.json") if (folder / f).is_file()), ""
    )
    files = sorted(folder.glob("*.safetensors"))
    small = next(filter(None, (_fewer_bits(_header(file, called)) for file in files)), "")
    named = kind or other or (small and f"numbers of {small}")
    if named:
        raise UserError(
            f"{called}: its weights are quantized ({named}), and the learner cannot train such "
            "weights; give the model that it was made from, in bfloat16 or float32"
        )


def quantization(settings: Mapping[str, Any]) -> str:
    """Returns the method by which config.json says that weights are quantized, or ""."""
    kind = _quantized(settings)
    return f"quantization_config: {_method(kind)}" if kind else ""


def _quantized(settings: Mapping[str, Any]) -> Any:
    """Returns what config.json says of a quantization; None if it says nothing."""
    text = settings.get("text_config")
    places = (settings, text if isinstance(text, dict) else {})
    said = (of.get(f"{key}_config") for of in places for key in ("quantization", "compression"))
    return next(filter(None, said), None)


def _fewer_bits(tensors: Header) -> str:
    """Returns the type of the first tensor that holds quantized numbers, or ""."""
    for name, of in tensors.items():
        kind, matrix = str(of.get("dtype")), len(of.get("shape", ())) >= 2
        whole = matrix and kind.startswith(_WHOLE) and name.endswith(".weight")
        if kind.startswith(_FEWER_BITS) or whole or _PACKED.search(name):
            return kind
    return ""


def _method(kind: Any) -> str:
    return str(kind.get("quant_method", "unknown")) if isinstance(kind, dict) else str(kind)[:40]


def _refuse_without(folder: Path, called: str) -> None:
    if pickled := next(folder.glob("*.bin"), None):
        raise UserError(
            f"{called}: its weights are {pickled.name}, a pickle, which may hold code; load the "
            "model elsewhere, and save it with save_pretrained, which writes *.safetensors"
        )
    raise UserError(f"{called}: no weights (*.safetensors) in {folder}; copy the whole folder")


def _header(file: Path, called: str) -> Header:
    """Returns the type and shape of each tensor in a file. Raises UserError for a damaged file."""
    try:
        with safe_open(file, framework="np"):  # compares the header with the file's size
            pass
        with file.open("rb") as opened:
            size = int.from_bytes(opened.read(8), "little")
            header: Header = json.loads(opened.read(size))
    except (OSError, ValueError, SafetensorError) as error:
        raise UserError(
            f"{called}: {file.name} is damaged ({_reason(file, error)}); copy it again"
        ) from None
    header.pop("__metadata__", None)
    return header


def _reason(file: Path, error: Exception) -> str:
    try:
        with file.open("rb") as opened:
            if opened.read(64).startswith(b"version https://git-lfs"):
                return "it is a pointer of Git LFS: run git lfs pull"
    except OSError:
        pass
    return f"{error!s:.80}"


def _index(file: Path, called: str) -> dict[str, str]:
    """Reads an index: the file of each tensor."""
    text = read_text(file, f"{called}: {file.name}", "copy it again", limit=None)
    try:
        index = json.loads(text)["weight_map"]
        if index and all(isinstance(part, str) for part in index.values()):
            return dict(index)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass
    raise UserError(f"{called}: {file.name} is not an index of weights; copy it again")


def _compare(found: Mapping[str, Header], index: Mapping[str, str], what: str) -> None:
    """Raises UserError if a file or a tensor of the index is missing."""
    if missing := sorted({file for file in index.values() if file not in found}):
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise UserError(
            f"{what} names {missing[0]}{more}, which the folder lacks; copy the whole folder"
        )
    if absent := [name for name, file in index.items() if name not in found[file]]:
        raise UserError(
            f"{what} says that {index[absent[0]]} holds the tensor {absent[0]}, but that file "
            f"lacks it ({len(absent)} such tensors); copy index and files from the same place"
        )


def _settings(folder: Path) -> dict[str, Any]:
    """Reads config.json; {} if it is damaged, which `read_tokenizer` reports."""
    try:
        settings = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return settings if isinstance(settings, dict) else {}
