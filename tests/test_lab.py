"""Every module of lab is imported, and every program of lab runs dry."""

import re
import subprocess
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

import launch.checks.presets  # noqa: F401  # before a test replaces Popen, which its annotations name
from lab.results.experiments import VARIANTS
from tests.test_architecture import module_of

ROOT = Path(__file__).parent.parent
MODULES = [path for path in (ROOT / "lab").rglob("*.py") if "tests" not in path.parts]
GIVEN = {
    "lab.alarms": ["--seeds 1 --lines {new}", "--only tools --page --lines {new}"],
    "lab.gate": [""],
    "lab.idealised": [""],
    "lab.quality": ["r3l/models/policies/tiny actor.earlier_reasoning=keep"],
    "lab.real_model": [
        "page",
        "warm --out {new} --dose 1000",
        "probe --out {new} --lines {new}/real-model.jsonl --dose 200",
        "train --out {new} --lines {new}/real-model.jsonl --dose 0 --variant gated --seed 1",
        "workshop --out {new} --lines {new}/real-model.jsonl --variant grpo_long --seed 1",
        "rare --out {new} --lines {new}/rare.jsonl --seed 1 learner.steps=2",
        "rare --out {new} --lines {new}/rare.jsonl --seed 1 --variant another --variant supervised",
        "calculator --out {new} --lines {new}/real-model.jsonl --seed 1 --learner 1cpu",
    ],
    "lab.report": [""],
    "lab.results": ["--lines {new} --policies {new}", "--only e1 --policy 1 --page"],
    "lab.results.gradients": ["", "--cell long-row --steps 0 --policies {new}"],
    "lab.results.stopped_runs": ["--lines {new} --stores {new}"],
    "lab.results.wall_clock": [
        "--lines {new} --policies {new} " + " ".join(f"--variant {name}" for name in VARIANTS),
        "--cell scienceworld --cell scienceworld-long --policies {new}",
    ],
    "lab.readme_figure": [""],
    "lab.retries": ["reached workshop", "reached verifiers:NAME --ignore", "refused", "saved"],
    "lab.idealised_samplers": [""],
    "lab.sampler_page": ["{new}"],
    "lab.sampler_study": ["--out {new} --seed 3 learner.steps=2"],
    "lab.searches": [""],
    "lab.where_it_pays": [""],
}
"""Arguments of every program, a dry run each. {new}: a path where nothing is."""
DRY_RUNS = [(program, words) for program, given in GIVEN.items() for words in given]


@pytest.mark.parametrize("path", MODULES, ids=module_of)
def test_a_module_of_lab_is_imported(path: Path) -> None:
    import_module(module_of(path))


def test_every_program_of_lab_is_run_dry_and_listed_in_its_readme() -> None:
    programs = {
        module_of(path).removesuffix(".__main__")
        for path in MODULES
        if 'if __name__ == "__main__":' in path.read_text("utf-8")
    }
    assert programs == GIVEN.keys()
    listed = re.findall(r"`python -m (lab[\w.]+)", (ROOT / "lab" / "README.md").read_text("utf-8"))
    assert set(listed) == programs


@pytest.mark.parametrize(("program", "words"), DRY_RUNS)
def test_a_dry_run_says_what_would_be_run_and_runs_nothing(
    program: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(_: object, command: object, *__: object, **___: object) -> None:
        raise AssertionError(f"a dry run started {command}")

    monkeypatch.setattr(subprocess.Popen, "__init__", refused)
    monkeypatch.setattr("lab.real_model.__main__.machine", lambda *_: "M")  # asks for the GPU
    monkeypatch.chdir(ROOT)
    package = (ROOT / program.replace(".", "/")).is_dir()
    module = import_module(f"{program}.__main__" if package else program)
    command = module.quality if program == "lab.quality" else module.main
    new = tmp_path / "new"
    arguments = [word.format(new=new) for word in words.split()]
    found = CliRunner().invoke(command, [*arguments, "--dry-run"])
    assert not found.exception and found.exit_code == 0, found.output
    assert found.output and not new.exists()
