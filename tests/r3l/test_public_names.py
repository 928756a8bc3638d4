"""The public names of `import r3l`."""

import subprocess
import sys
from pathlib import Path

import pytest

import r3l

ROOT = Path(r3l.__file__).parents[1]


def python(code: str, folder: Path) -> str:
    """What `code` prints, run in `folder` as in a notebook: the folder is first on the path."""
    code = f"import sys; sys.path.insert(1, {str(ROOT)!r}); {code}"
    ran = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    return ran.stdout + ran.stderr.strip().rpartition("\n")[2]


def test_every_public_name_is_there_and_another_is_refused_with_the_list() -> None:
    for name in r3l.PUBLIC:
        assert getattr(r3l, name) is not None and name in dir(r3l)
    with pytest.raises(AttributeError, match=r"no 'Bufer'; .*BufferClient"):
        _ = r3l.Bufer


def test_a_notebook_may_lie_beside_modules_with_the_names_of_ours(tmp_path: Path) -> None:
    (tmp_path / "buffer.py").write_text("raise SystemExit('not the one')")
    (tmp_path / "envs.py").write_text("")
    use = "import r3l; print(r3l.BufferClient.__module__, r3l.train.__module__)"
    assert python(use, tmp_path) == "buffer.client.clients launch.cli\n"
    said = python(f"import envs; {use}", tmp_path)
    assert "its package envs" in said and "rename yours" in said
