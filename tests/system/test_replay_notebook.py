"""docs/replay.ipynb runs from its first cell to its last, and shows what its text says: with the
installed wheel, in a folder without a checkout."""

import re
from pathlib import Path

import nbformat
import pytest

from tests.system.conftest import Installed

pytestmark = [pytest.mark.system, pytest.mark.nightly, pytest.mark.timeout(1200)]
NOTEBOOK = Path(__file__).parents[2] / "docs" / "replay.ipynb"
EXECUTE = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=550, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""


def shown(cell: nbformat.NotebookNode) -> str:
    """What a cell printed, and its value as text and as HTML."""
    parts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        parts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
    return "\n".join(parts)


def test_the_notebook_runs_and_its_step_is_replayed_bit_for_bit(
    tmp_path: Path, installed: Installed, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(shown(cell) for cell in notebook.cells), "clear its outputs"
    places = {"TMPDIR": str(tmp_path), "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter")}
    monkeypatch.setattr(installed, "env", installed.env | {"OMP_NUM_THREADS": "1"} | places)
    installed.output("python", "-c", EXECUTE, str(NOTEBOOK), str(tmp_path / "made.ipynb"))
    notebook = nbformat.read(tmp_path / "made.ipynb", as_version=4)
    said = {cell.id: shown(cell) for cell in notebook.cells if cell.cell_type == "code"}
    whole = "\n".join(said.values())
    [replayed] = [line for line in whole.splitlines() if line.startswith("step 3: ")]
    assert "weights of the journal same" in replayed and "DIFFERS" not in whole
    assert "── attempt 0: done" in whole and "image/png" in str(notebook.cells)
    assert re.search(r"── attempt \d, retry of \d from step \d: done", whole)
    assert "learner/behaviour_ess" in whole
    [progress] = tmp_path.glob("r3l-*/offline/progress.jsonl")
    assert progress.read_text().count("\n") == 10
