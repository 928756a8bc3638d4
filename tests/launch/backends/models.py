"""Folders of models that weigh nothing on the disk."""

import json
import shutil
import struct
from pathlib import Path

from r3l.models.model_path import builtin_policy

SEVEN = {  # Qwen2.5-7B
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152_064,
    "dtype": "bfloat16",
}
PARAMETERS = 7_615_616_512


def large_model(folder: Path) -> Path:
    """A folder that looks like a model of 7.6 billion parameters; its weights are a hole."""
    shutil.copytree(builtin_policy(), folder)
    (folder / "config.json").write_text(json.dumps(SEVEN))
    size = 2 * PARAMETERS
    tensor = {"w": {"dtype": "BF16", "shape": [PARAMETERS], "data_offsets": [0, size]}}
    header = json.dumps(tensor).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + size)
    return folder
