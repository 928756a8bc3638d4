"""Becomes a shell that runs a command with the folders of `local_environment` at Harbor's paths.

python view_command.py ROOT COMMAND FOLDER
"""

import importlib.util
import os
import sys
from pathlib import Path

VIEW = Path(__file__).parents[4] / "envs" / "agents" / "task_folders" / "private_view.py"
SHOWN = ("app", "logs", "solution", "tests", "tmp")


def main(root, command, folder):
    spec = importlib.util.spec_from_file_location("private_view", VIEW)
    view = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(view)
    binds = [(f"{root}/{name}", f"/{name}") for name in SHOWN]
    view.enter(
        {"root": f"{root}/view", "binds": binds, "copies": [], "hidden": [],
         "temporary": ["/tmp"], "folder": folder}
    )  # fmt: skip
    view.lock()
    os.execl("/bin/bash", "bash", "-c", command)


if __name__ == "__main__":
    main(*sys.argv[1:])
