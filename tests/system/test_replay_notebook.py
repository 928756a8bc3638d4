"""docs/replay.ipynb runs from its first cell to its last, and shows what its text says."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = [pytest.mark.system, pytest.mark.nightly]
NOTEBOOK = Path(__file__).parents[2] / "docs" / "replay.ipynb"


def shown(cell: nbformat.NotebookNode) -> str:
    """What a cell printed, and its value as text and as HTML."""
    parts = []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        parts += [output.get("text", ""), data.get("text/plain", ""), data.get("text/html", "")]
    return "\n".join(parts)


def test_the_notebook_runs_and_its_step_is_replayed_bit_for_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert not any(shown(cell) for cell in notebook.cells), "clear its outputs"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    NotebookClient(notebook, timeout=550, kernel_name="python3").execute()
    said = {cell.id: shown(cell) for cell in notebook.cells if cell.cell_type == "code"}
    whole = "\n".join(said.values())
    [replayed] = [line for line in whole.splitlines() if line.startswith("step 3: ")]
    assert "weights of the journal same" in replayed and "DIFFERS" not in whole
    assert (
        "── base 0: done" in whole
        and "retry of base" in whole
        and "image/png" in str(notebook.cells)
    )
    assert "learner/behaviour_ess" in whole
    [progress] = tmp_path.glob("r3l-*/offline/progress.jsonl")
    assert progress.read_text().count("\n") == 10
