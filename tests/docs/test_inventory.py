"""docs/inventory.txt has every name that a user can meet, and none vanishes without its line."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.inventory import INVENTORY, REMOVED, ROOT, faults_of, listed, main, names, page

MADE_UP = "setting learner.made_up"
GONE = f"removed: {MADE_UP}, a test made it up, nobody loses anything\n"


@pytest.fixture(scope="module")
def found() -> set[str]:
    return names()


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """The file of an earlier day, with a name that the code does not have."""
    file = tmp_path / "inventory.txt"
    file.write_text(f"# a comment\nalgorithm r3l\n{MADE_UP}\n", "utf-8")
    return file


def test_every_name_of_the_file_is_in_the_code_and_every_name_of_the_code_is_in_the_file(found):
    written = INVENTORY.read_text("utf-8")
    gone, came = sorted(set(listed(written)) - found), sorted(found - set(listed(written)))
    assert not gone, "in docs/inventory.txt, but not in the code; run make docs"
    assert not came, "in the code, but not in docs/inventory.txt; run make docs"
    assert written == page(found), "run make docs"


def test_the_file_has_names_of_every_kind(found):
    few = """algorithm r3l|argument r3l-launch doctor RUN|backend slurm
command r3l-env check|command r3l-launch|command r3l-launch doctor
command r3l-learner warmup|evaluation-metric success|logger wandb|message … is stopped
message the rewards of every group are equal (their mean is …)
metric group/reward_mean|metric actor/idle_share|option r3l-actor --weights
option r3l-launch train --version|preset demo|python envs.TextEnv|python r3l.train|sampler fifo
setting algorithm.alpha (r3l)|setting actor.agent.models.key|setting buffer.sampler.reuse
setting learner.lr|setting seed|task-sampler shuffled|value algorithm.gate=measured (r3l)
value r3l-eval --split=train|world gsm8k|world reasoning:<member>|world-option workshop items"""
    few_names = set(few.replace("|", "\n").splitlines())
    assert few_names <= found, few_names - found
    assert {name.partition(" ")[0] for name in few_names} == {
        name.partition(" ")[0] for name in found
    }


def test_every_removed_name_has_a_reason_and_a_loser_and_is_not_in_the_code(found):
    assert not faults_of(listed(REMOVED.read_text("utf-8")), found)
    assert not faults_of([GONE.strip(), "removed: message a, b, of a test, nobody"], found)
    wrong = ["algorithm r9, gone, nobody", "removed: algorithm r9, gone", "removed: thing a, b, c",
             "removed: algorithm r3l, gone, nobody", "removed: algorithm r9, , "]  # fmt: skip
    assert faults_of(wrong, found) == wrong


def test_a_name_is_not_dropped_without_its_line(inventory, tmp_path, capsys):
    removed, before = tmp_path / "removed.txt", inventory.read_text("utf-8")
    for lines in ("", f"# {GONE}", GONE.replace("made_up", "made_up_too"), GONE.split(",")[0]):
        removed.write_text(lines, "utf-8")
        assert main(inventory, removed) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert f"{MADE_UP}: is in" in said and "docs/removed.txt" in said
        assert inventory.read_text("utf-8") == before


def test_a_name_with_its_line_is_dropped(inventory, tmp_path, found):
    removed = tmp_path / "removed.txt"
    removed.write_text(GONE, "utf-8")
    assert main(inventory, removed) == 0
    assert inventory.read_text("utf-8") == page(found) and MADE_UP not in page(found)


def test_the_names_are_found_without_heavy_libraries():
    code = (
        "import sys\nfrom benchmarks.inventory import names\nnames()\n"
        "print(*{'torch', 'transformers', 'deepspeed', 'vllm'} & sys.modules.keys())"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout.strip()) == (0, ""), ran.stderr
