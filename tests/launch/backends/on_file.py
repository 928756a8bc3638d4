"""Plans and scripts as they were printed, in `plans/`.

R3L_WRITE_PLANS=1 writes the files again; read the difference before you commit it.
"""

import os
import sys
from pathlib import Path

from r3l.files.own_packages import ROOT

PLANS = Path(__file__).parent / "plans"


def check_on_file(said: str, name: str, shared: Path) -> None:
    """Fail unless what was said in the folder `shared` is the file of this name."""
    for path, short in ((sys.executable, "python"), (shared, "/shared"), (ROOT, "/r3l")):
        said = said.replace(str(path), short)
    file = PLANS / f"{name}.txt"
    if os.environ.get("R3L_WRITE_PLANS"):
        file.write_text(said)
    assert said == file.read_text()
