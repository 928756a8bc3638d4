"""Checks a Hugging Face model folder, reads its tokenizer and computes its digest."""

import hashlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from r3l.errors import UserError
from r3l.files import checksums
from r3l.files.whole_file import read_json, write_json
from r3l.models.weight_files import check_weights

CHECKSUMS = "r3l-checksums.json"
"""The file of a saved model's checksums."""
REMEDY = (
    f"copy it again, or delete {CHECKSUMS} if you changed the model yourself or saved it with an "
    "earlier version of r3l"
)
ADAPTER = "adapter_config.json"
"""The file by which transformers finds an adapter in a model folder."""
UNFINISHED = "unfinished.json"
"""The file by which the folder of an unfinished warm-up is recognised."""
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
"""The name of a model on Hugging Face's hub, such as Qwen/Qwen2.5-0.5B-Instruct."""


def check_model_folder(
    folder: Path, called: str, *, weights: bool = True, tokenizer: bool = True
) -> None:
    """Raises UserError if `folder` lacks a usable Hugging Face model or tokenizer. `weights`,
    `tokenizer`: whether to check these. `called`: how the message begins."""
    if not (folder / "config.json").is_file():
        if (folder / UNFINISHED).is_file():
            raise UserError(
                f"{called}: {folder} is an unfinished warm-up, which has no model yet; repeat its "
                "r3l-learner warmup command to finish it"
            )
        if (folder / ADAPTER).is_file():
            raise UserError(
                f"{called}: {folder} holds an adapter{_base(folder)} without its model; load both "
                "with peft, call merge_and_unload, and save the result with save_pretrained"
            )
        named = HUB_ID.fullmatch(called.removeprefix("--").removeprefix("model").strip())
        hub = ""
        if named:
            first = named[0].partition("/")[0]
            hub = (
                f"; a name is the hub's only where there is no folder {first}: start elsewhere, or "
                f"type hf download {named[0]} --local-dir OTHER and give OTHER"
            )
        raise UserError(
            f"{called}: no config.json in {folder}; give a Hugging Face model folder, a name on "
            f"its hub (org/name), smollm2, or builtin for the shipped tiny policy{hub}"
        )
    files = ("tokenizer.json", "tokenizer_config.json")
    if tokenizer and not any((folder / file).is_file() for file in files):
        raise UserError(f"{called}: no tokenizer in {folder}; save one next to the model")
    if (folder / ADAPTER).is_file():
        raise UserError(
            f"{called}: {folder} has an adapter ({ADAPTER}), which the learner would load but the "
            "engines would ignore; merge it into the weights, and give a folder without it"
        )
    if weights:
        check_weights(folder, called)


def _base(folder: Path) -> str:
    """Returns " of MODEL": the model that an adapter belongs to, or "" if it does not say."""
    try:
        base = json.loads((folder / ADAPTER).read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return ""
    return f" of {base!s:.100}" if base else ""


@dataclass(frozen=True)
class SavedModel:
    """The content of CHECKSUMS: each file's size and checksum, and the model's optimizer step."""

    files: dict[str, tuple[int, str]]
    step: int


def write_checksums(folder: Path, step: int) -> None:
    """Writes the checksums of a saved model's files. Raises OSError."""
    write_json(folder / CHECKSUMS, {"files": checksums.of_folder(folder), "step": step})


def read_checksums(folder: Path) -> SavedModel | None:
    """Reads the checksums saved with a model; None if there are none. Raises UserError."""
    return read_json(folder / CHECKSUMS, REMEDY, SavedModel)


def check_checksums(folder: Path, called: str) -> None:
    """Raises UserError if a model has checksums that its files do not match."""
    known = read_checksums(folder)
    if known and (damaged := checksums.damage(folder, known.files)):
        raise UserError(f"{called}: {damaged}; {REMEDY}")


def weight_bytes(folder: Path) -> int:
    """Returns the size of a model folder's weights, in bytes."""
    return sum(path.stat().st_size for path in folder.glob("*.safetensors"))


def float32_bytes(folder: Path) -> int:
    """Returns how many bytes a model folder's weights take in float32, as in checkpoints."""
    settings = json.loads((folder / "config.json").read_bytes())
    whole = "float32" in (settings.get("dtype"), settings.get("torch_dtype"))
    return weight_bytes(folder) * (1 if whole else 2)


def read_tokenizer(folder: Path, called: str) -> Any:
    """Reads a model folder's tokenizer, without downloads. Raises UserError if that fails, or if
    the tokenizer does not fit the model's configuration."""
    from transformers import AutoConfig, AutoTokenizer

    # Without the last argument transformers asks on the terminal whether to run the code.
    quiet: Any = {"local_files_only": True, "trust_remote_code": False}
    try:
        size = AutoConfig.from_pretrained(folder, **quiet).get_text_config().vocab_size
        tokenizer: Any = AutoTokenizer.from_pretrained(folder, **quiet)
        needed = max(tokenizer.get_vocab().values(), default=-1) + 1
    except Exception as error:  # the error depends on the place of the damage
        reason = " ".join(str(error).split())[:160]
        if "trust_remote_code" in str(error):
            reason = "it needs code of its own, which is never run; choose another model"
        raise UserError(f"{called}: transformers cannot read it ({reason})") from None
    if size is not None and needed > size:
        raise UserError(
            f"{called}: its tokenizer has {needed} tokens, the model only {size}; call "
            f"model.resize_token_embeddings({needed}), and save the model again"
        )
    # If the tokenizer were saved with this argument, other programs would obey it.
    del tokenizer.init_kwargs["local_files_only"]
    # Whether a text fits is checked with the run's own limits, whose message names the task.
    told = "sequence-length-is-longer-than-the-specified-maximum"
    getattr(tokenizer, "deprecation_warnings", {})[told] = True
    return tokenizer


BLOCKS, BLOCK_BYTES = 64, 1 << 16


def model_digest(folder: Path) -> str:
    """Computes a hash of a model's weight files and tokenizer.json. The hash covers only samples of
    large files."""
    digest = hashlib.sha256()
    weights = sorted(folder.glob("*.safetensors")) or sorted(folder.glob("*.bin"))
    for path in [*weights, folder / "tokenizer.json"]:
        if not path.is_file():
            continue
        size = path.stat().st_size
        digest.update(f"{path.name} {size} ".encode())
        with path.open("rb") as file:
            for place in sorted({size * i // BLOCKS for i in range(BLOCKS)}):
                file.seek(place)
                digest.update(file.read(BLOCK_BYTES))
    return digest.hexdigest()
