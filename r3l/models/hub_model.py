"""Finds models of Hugging Face's hub by name, such as Qwen/Qwen2.5-0.5B-Instruct@main.

name ─► user's cache ─► complete? ─► model folder
             └─ no ─► NotDownloaded ─► (after consent) the files that are needed
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from r3l.errors import UserError
from r3l.files.hub_cache import Listing, Repository, absent, all_files, snapshot
from r3l.models.weight_files import INDEX, SINGLE, quantization

NAME = re.compile(r"([A-Za-z0-9][\w.-]*/[\w.-]+?)(?:@((?!.*\.\.)[\w./-]+))?")
BESIDE_WEIGHTS = (".json", ".jinja", ".txt", ".model", ".tiktoken", ".md")
"""Endings of the files beside the weights: settings, tokenizer, chat template, licence."""
_TOKENIZER = re.compile(
    r"(?:tokenizer|vocab|merges|special_tokens|added_tokens|chat_template|generation_config|spiece"
    r"|sentencepiece)[\w.]*\.(?:json|jinja|txt|model)|[\w.-]+\.tiktoken"
)
"""Files that decide which tokens a text has, or where an answer ends."""
_VOCABULARIES = ("tokenizer.json", "*.model", "vocab.*", "*.tiktoken")


def repository(name: str) -> Repository | None:
    """Returns the repository that a model's name means; None if the name is a path. A name whose
    first part is a folder here is a path."""
    found = NAME.fullmatch(name)
    if found is None or Path(name).exists() or Path(name).parent.is_dir():
        return None
    return Repository(found[1], found[2] or "main", written=name)


def cached_model(repo: Repository) -> Path:
    """Returns a model's folder in the user's cache. Raises NotDownloaded if it is missing or
    incomplete, for example without its tokenizer or a file that its index names."""
    folder = snapshot(repo)
    if folder is None:
        raise absent(repo)
    if lacks := [*_missing(folder), *_missing_of_tokenizer(folder, all_files(repo))]:
        raise absent(repo, lacks)
    return folder


def needed_files(listed: Listing, *, trained: bool = True) -> list[str]:
    """Chooses the files of a model that are needed, config.json first. Raises UserError for a model
    that cannot be used, before its weights are downloaded. `trained`: refuse quantized weights,
    which only engines can load."""
    title, names = listed.repository.title, listed.files
    if (config := listed.read("config.json")) is None:
        held = next((name for name in names if name.endswith(".gguf")), "")
        gguf = f"hf download {listed.repository.name} {held}, and give --model FILE.gguf"
        raise UserError(
            f"{title}: has no config.json; "
            + (f"it holds GGUF files: type {gguf}" if held else "choose a model of transformers")
        )
    if trained and (kind := quantization(_json(config))):
        raise UserError(
            f"{title}: its weights are quantized ({kind}), and the learner cannot train such "
            "weights; give the model that it was made from, in bfloat16 or float32"
        )
    if index := listed.read(INDEX):
        weights = sorted(_indexed(index))
    elif SINGLE in names:
        weights = [SINGLE]
    else:
        pickled = any(name.endswith(".bin") for name in names)
        what = "pickles (*.bin), which may hold code" if pickled else f"not in {SINGLE} or {INDEX}"
        raise UserError(f"{title}: its weights are {what}; choose a model with *.safetensors")
    if lacks := [file for file in weights if file not in names]:
        raise UserError(f"{title}: {INDEX} names {lacks[0]}, which the hub lacks; choose another")
    beside = [name for name in names if "/" not in name and name.endswith(BESIDE_WEIGHTS)]
    return list(dict.fromkeys(["config.json", *beside, *weights]))


def _missing(folder: Path) -> list[str]:
    """Returns the files that a model's folder lacks: config.json, or those that its index names."""
    needed = ["config.json"]
    index = folder / INDEX
    pickled = any(folder.glob("*.bin"))
    needed += sorted(_indexed(index)) if index.is_file() else [] if pickled else [SINGLE]
    return [name for name in needed if not (folder / name).is_file()]


def _missing_of_tokenizer(folder: Path, names: Sequence[str] | None) -> list[str]:
    """Returns the files of its tokenizer that a model's folder lacks. `names`: the names of all its
    files on the hub, None if they are not known."""
    if names is not None:
        needed = [name for name in names if _TOKENIZER.fullmatch(name)]
        return [name for name in needed if not (folder / name).is_file()]
    lacks = [] if (folder / "tokenizer_config.json").is_file() else ["tokenizer_config.json"]
    held = any(file.is_file() for each in _VOCABULARIES for file in folder.glob(each))
    return lacks if held else [*lacks, "tokenizer.json"]


def _indexed(index: Path) -> set[str]:
    """Returns the files that an index names. Returns none if it is damaged; `check_weights` reports
    that."""
    files = _json(index).get("weight_map")
    return {str(file) for file in files.values()} if isinstance(files, Mapping) else set()


def _json(file: Path) -> dict[str, Any]:
    """Reads an object. Returns {} if it is damaged; the checks of a model folder report that."""
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
