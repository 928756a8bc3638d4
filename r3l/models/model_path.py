"""Finds the folders of models by name, path or GGUF file."""

from pathlib import Path
from typing import Any

from r3l.files.user_file import user_path
from r3l.models import hub_model
from r3l.models.gguf_model import SMOLLM2, convert, smollm2_folder


def builtin_policy() -> Path:
    """Returns the folder of the shipped tiny policy, which `r3l-learner warmup` made."""
    return Path(__file__).parent / "policies" / "tiny"


def shipped_tokenizer() -> Any:
    """Reads the shipped policy's tokenizer without AutoTokenizer, whose import takes seconds."""
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer.from_pretrained(builtin_policy(), local_files_only=True)


def model_path(name: str) -> Path:
    """Returns the model folder for a value of the setting `model`. Converts a GGUF file once.
    Raises UserError if the conversion fails or SmolLM2 is not installed. Raises NotDownloaded for a
    model of the hub that is missing or incomplete in the user's cache."""
    if name == "builtin":
        return builtin_policy()
    if name == SMOLLM2:
        return smollm2_folder()
    if hub := hub_model.repository(name):
        return hub_model.cached_model(hub)
    path = user_path(name).resolve()
    if path.suffix == ".gguf":
        return convert(path, f"model {name}")
    return path
