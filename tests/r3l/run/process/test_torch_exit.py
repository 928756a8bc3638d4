"""A process ends with its exit code although the interpreter's own end would abort it."""

import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os
{imports}

class Abort:
    def __del__(self):
        os.abort()

last = Abort()
atexit.register(print, "handled")
print("said", end=" ")
{end}
"""


@pytest.mark.parametrize(
    "imports, end, code, said",
    [
        ("", "", -6, "said handled\n"),  # what the others prevent
        (
            "from r3l.run.process.torch_exit import end_process",
            "end_process(7)",
            7,
            "said handled\n",
        ),
        ("from learner.cli import main", "main(['nonsense'])", 2, "said handled\n"),
    ],
)
def test_a_process_ends_with_its_code_after_its_exit_handlers(
    imports: str, end: str, code: int, said: str
) -> None:
    program = PROGRAM.format(imports=imports, end=end)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, said), done.stderr
