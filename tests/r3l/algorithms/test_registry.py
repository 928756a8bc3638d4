"""The registry: algorithms by name, and their settings in a configuration."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from r3l.algorithms import registry
from r3l.algorithms.rehearsal.rehearse import rehearse
from r3l.errors import UserError
from r3l.records import GroupPlan
from r3l.run.config import RunConfig, dump, load
from tests.r3l.algorithms.fakes import (
    NAMES,
    advantages_of,
    batch_of,
    facts_of,
    get,
    planned,
    random_source,
    stored,
)


def test_the_registry_holds_the_algorithms_of_the_papers():
    papers = "r3l grpo dapo gspo opmd raft reflect_grpo critique_grpo rloo r3 arpo spear"
    inside = "prefix_rl pope exit restart_from_success"
    advised = "rltf hill sdpo rlsd forward_kl"
    more = {"early_experience", "rlvmr", *inside.split(), *advised.split()}
    assert set(registry.REGISTRY) == {*papers.split(), *more}
    assert all(get(name).name == name for name in NAMES)


def refusal(*overrides):
    with pytest.raises(UserError) as caught:
        load(None, overrides)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_algorithm_names_the_known_ones():
    known = "r3l, grpo, dapo, gspo, opmd, raft, reflect_grpo, critique_grpo, rloo, r3, arpo, spear"
    more = "early_experience, rlvmr, prefix_rl, pope, exit, restart_from_success"
    advised = "rltf, hill, sdpo, rlsd, forward_kl"
    message = f"config algorithm: unknown algorithm 'other'; known: {known}, {more}, {advised}"
    assert refusal("algorithm=other") == message
    assert refusal("algorithm.name=other", "algorithm.alpha=2") == message


def test_an_unknown_setting_is_named_with_the_settings_the_algorithm_has():
    said = refusal("algorithm=grpo", "algorithm.alpha=2")
    assert said.startswith("config key algorithm.alpha: unknown to algorithm=grpo, known to r3l")
    assert "this section knows name, group_size, normalize" in said
    assert "algorithm.credit: unknown" in refusal("algorithm=opmd", "algorithm.credit=false")
    assert "algorithm.tau: unknown" in refusal("algorithm=gspo", "algorithm.tau=2")


def test_settings_without_a_name_are_those_of_r3l(tmp_path):
    assert load(None, ["algorithm.credit=false"]) == load(
        None, ["algorithm.credit=false", "algorithm=r3l"]
    )
    (tmp_path / "run.yaml").write_text("algorithm: {alpha: 2}\n")
    assert load(tmp_path / "run.yaml").algorithm.alpha == 2.0
    (tmp_path / "run.yaml").write_text("algorithm:\n")
    assert load(tmp_path / "run.yaml") == RunConfig()


def test_another_name_keeps_those_of_the_files_settings_that_it_has_too(tmp_path):
    path = tmp_path / "run.yaml"
    path.write_text("algorithm: {name: dapo, group_size: 4, clip_high: 0.3}\n")
    changed = load(path, ["algorithm=grpo"]).algorithm
    assert (changed.name, changed.group_size, changed.clip_high) == ("grpo", 4, 0.3)
    assert load(path, ["algorithm=raft"]) == load(
        None, ["algorithm=raft", "algorithm.group_size=4"]
    )


def test_a_group_that_does_not_split_is_named():
    assert "config algorithm: group_size 7: " in refusal("algorithm.group_size=7")
    assert planned(get("grpo", group_size=7)) == GroupPlan(7)
    assert planned(get("reflect_grpo", group_size=7)) == GroupPlan(10)


@pytest.mark.parametrize("name", NAMES)
def test_every_algorithms_configuration_reads_back_equal(name, tmp_path):
    config = load(None, [f"algorithm={name}", "algorithm.group_size=4"])
    (tmp_path / "run.yaml").write_text(dump(config))
    assert load(tmp_path / "run.yaml") == config
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


def test_each_ablation_is_one_override():
    for override in (
        "credit=false",
        "amplify=false",
        "reflect=false",
        "from_start=true",
        "guidance=false",
    ):
        assert load(None, [f"algorithm.{override}"]) != RunConfig()


REINFORCE = """
from typing import Literal

from pydantic import Field

from r3l.algorithms.algorithm import Algorithm


class Reinforce(Algorithm):
    name: Literal["reinforce"] = Field("reinforce", description="algorithm")
"""
USE = """
from r3l.algorithms.facts import LeaseFacts
from r3l.run.config import RunConfig, dump, load
from r3l.errors import UserError

config = load(None, ["algorithm=reinforce", "algorithm.group_size=3"])
assert config.algorithm.plan(LeaseFacts("t", 0, 0, (), (), None)).slots == 3
assert "name: reinforce" in dump(config)
assert RunConfig.model_validate_json(config.model_dump_json()) == config
try:
    load(None, ["algorithm=reinforce", "algorithm.alpha=2"])
except UserError as error:
    print(error)
"""


def test_a_new_algorithm_takes_one_file_and_its_line_in_the_registry(tmp_path):
    root = Path(registry.__file__).parent.parent
    shutil.copytree(root, tmp_path / "r3l", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "r3l/algorithms/reinforce.py").write_text(REINFORCE)
    path = tmp_path / "r3l/algorithms/registry.py"
    text = path.read_text()
    imported = "from r3l.algorithms.reinforce import Reinforce\nfrom r3l.settings.section"
    text = text.replace("from r3l.settings.section", imported)
    path.write_text(text.replace("    | GRPO\n", "    | GRPO\n    | Reinforce\n"))
    used = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert "algorithm.alpha: unknown to algorithm=reinforce" in used.stdout
    assert used.stdout.endswith("this section knows name, group_size, normalize\n")


OWN = '''
from pydantic import Field

from r3l.algorithms import rows
from r3l.algorithms.credit import by_step
from r3l.algorithms.published.grpo import GRPO
from r3l.records import GroupPlan


class Halving(GRPO):
    """GRPO with advantages times a factor, given to single tokens, and one recalled failure."""

    kl_coef: float = 0.0
    factor: float = Field(0.5, description="of every advantage")

    def plan(self, lease):
        return GroupPlan(self.group_size, "first" if lease.epoch == 0 else "")

    def recalls(self, group, history, random):
        return [one for one in history if not one.success][:1]

    def rows(self, batch):
        found = self.advantages(batch)
        spread = [
            [by_step([self.factor * a] * one.num_steps, one)
             for a, one in zip(values, batch.attempts(group))]
            for group, values in zip(batch.groups, found)
        ]
        made = rows.policy(batch, found, self.credit_masks(batch), self.normalize, spread)
        return rows.weigh(made, self.normalize)
'''


@pytest.fixture
def own(tmp_path):
    """Writes a file of the user's, and returns the path by which its class is named."""

    def write(text, kind):
        file = tmp_path / f"{kind.lower()}.py"
        file.write_text(text)
        return f"{file}:{kind}"

    return write


def test_an_algorithm_of_the_users_own_is_named_by_path_with_its_settings_and_methods(
    own, tmp_path, make_trajectory
):
    name = own(OWN, "Halving")
    config = load(None, [f"algorithm={name}", "algorithm.factor=0.25", "algorithm.group_size=2"])
    assert (config.algorithm.name, config.algorithm.factor) == (name, 0.25)
    (tmp_path / "run.yaml").write_text(dump(config))
    again = load(tmp_path / "run.yaml")
    assert again == config and again.algorithm.factor == 0.25
    algorithm = config.algorithm
    assert planned(algorithm) == GroupPlan(2, "first") and planned(algorithm, epoch=1).kind == ""
    won, failed = stored("g2", 1.0), stored("g1", 0.0)
    assert list(algorithm.recalls(facts_of((1.0,)), [won, failed], random_source)) == [failed]
    attempts = [make_trajectory(slot=i, reward=1.0 - i) for i in range(2)]
    given = [row.advantages[row.mask] for row in algorithm.rows(batch_of(attempts))]
    assert [set(tokens.round(4).tolist()) for tokens in given] == [{0.25}, {-0.25}]
    said = refusal(f"algorithm={name}", "algorithm.facto=1")
    assert said.startswith("config key algorithm.facto: unknown (did you mean factor?)")
    assert "not a subclass of Algorithm" in refusal(f"algorithm={name[:-8]}:by_step")[-60:]
    line = refusal("algorithm=no/such/file.py:Mine")
    assert line.startswith("config algorithm") and "does not exist" in line


FIELD = "from r3l.algorithms.algorithm import Algorithm\nclass Mine(Algorithm):\n    factor = 2"

HIDING = FIELD.replace("factor", "recalls: int")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import no_such_library", "importing it raised ModuleNotFoundError"),
        ("class Mine(", "importing it raised SyntaxError"),
        ("raise SystemExit(3)", "importing it raised SystemExit: 3"),
        ("class Mine: pass", "'Mine' in that file is not a subclass of Algorithm"),
        ("", "'Mine' in that file is not a subclass of Algorithm"),
        (HIDING, "importing it raised TypeError: the setting 'recalls' has the name of a method"),
        (FIELD, "raised PydanticUserError: A non-annotated attribute was detected: `factor"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_one_line_that_names_it(own, text, said):
    name = own(text, "Mine")
    line = refusal(f"algorithm={name}")
    assert said in line and name[:200] in line


def test_a_setting_out_of_the_range_of_the_users_own_field_is_refused(own):
    text = """
from pydantic import Field
from r3l.algorithms.algorithm import Algorithm

class Narrow(Algorithm):
    share: float = Field(0.5, ge=0, le=1, description="of something")
"""
    line = refusal(f"algorithm={own(text, 'Narrow')}", "algorithm.share=2")
    assert line.startswith("config algorithm.share") and "1" in line


def algorithms_of_the_page():
    """(class, text) of each algorithm on the page of algorithms."""
    page = (Path(__file__).parents[3] / "docs" / "algorithm.md").read_text("utf-8")
    for example in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        yield re.findall(r"^class (\w+)", example, re.MULTILINE)[-1], example


@pytest.mark.parametrize(("kind", "example"), list(algorithms_of_the_page()))
def test_an_algorithm_of_the_page_passes_its_rehearsal(own, kind, example):
    rehearse(load(None, [f"algorithm={own(example, kind)}"]).algorithm)


def test_the_algorithm_of_the_page_has_the_median_as_its_baseline(own, make_trajectory):
    (kind, example), *_ = algorithms_of_the_page()
    algorithm = load(None, [f"algorithm={own(example, kind)}", "algorithm.factor=2"]).algorithm
    attempts = [make_trajectory(slot=i, reward=r) for i, r in enumerate((0.0, 0.25, 1.0))]
    assert advantages_of(algorithm, attempts)[0].tolist() == [-0.5, 0.0, 1.5]
