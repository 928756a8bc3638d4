"""The experiments: one real step of two variants, resumed; the page from the committed lines."""

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace as changed
from pathlib import Path
from typing import cast

import psutil
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from envs import exploring
from lab.results import alternate, page, tables
from lab.results.__main__ import finished, main
from lab.results.alternate import Direct, FreePolicy, Learner, explorer
from lab.results.cells import CELLS
from lab.results.experiments import EXPERIMENTS, VARIANTS, Run, runs
from lab.results.lines import APPENDIX, DOCS, LINES, ROOT, read_lines
from lab.results.taught import Guidance
from learner.warmup import lessons, tiny_policy
from r3l.algorithms.batch import Batch
from r3l.records import Group, SlotResult, Task
from r3l.rollout.policy_interface import Policy
from r3l.run import config as configuration
from r3l.run.config import RunConfig
from r3l.training.group_memory import ROUNDS
from r3l.training.local_policy import LocalPolicy
from tests.launch.fakes import until
from tests.processes import command_line, lives
from tests.r3l.training.fakes import explore_group

WORTH = DOCS / "replay" / "worth.md"


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    world = lessons.demonstrating("workshop")
    tokenizer = tiny_policy.build_tokenizer(lessons.texts(world))
    tiny_policy.build_model(tokenizer, seed=0, hidden=32, layers=1).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def small(model: Path, *settings: str) -> RunConfig:
    limits = ("learner.groups_per_step=1", "eval.tasks=2", "actor.max_reflection_tokens=12")
    return configuration.load(None, [f"model={model}", *limits, *settings])


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    return result.exit_code, result.output


def test_a_run_ends_at_its_budget_of_steps_or_tokens(model_folder: Path) -> None:
    config = small(model_folder, "algorithm=grpo")
    steps = asyncio.run(alternate.alternate(config, steps=2))
    assert steps["steps"] == 2 and steps["attempts"] == 16
    curve = steps["curve"]
    assert [len(values) for values in curve.values()] == [2] * len(curve)
    assert curve["tokens"][-1] == steps["tokens"] and curve["trigger_rate"] == [None, None]
    assert asyncio.run(alternate.alternate(config, steps=9, tokens=1))["steps"] == 1


@pytest.mark.system
def test_a_run_that_learns_from_stored_groups_explores_only_the_new_ones_of_a_batch(
    model_folder: Path,
) -> None:
    settings = ("algorithm=grpo", "learner.groups_per_step=2", "env.train_tasks=4",
                "buffer.max_staleness=0", "buffer.sampler.reuse=4",
                "buffer.sampler.replay_share=0.5", "buffer.sampler.replay_staleness=9",
                "buffer.map_gib=0.25")  # fmt: skip
    config = small(model_folder, *settings)
    made = asyncio.run(alternate.alternate(config, steps=3, stored=True))
    assert made["curve"]["attempts"] == [16, 24, 32]  # 2 new groups, then 1 a step


def test_the_policy_is_as_many_steps_behind_as_asked(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = small(model_folder, "algorithm=grpo")
    for lag, updates in ((0, 4), (2, 2)):
        loads: list[int] = []
        load = FreePolicy.load

        def noted(policy, weights, load=load, loads=loads):  # type: ignore[no-untyped-def]
            loads.append(policy.version)
            load(policy, weights)

        monkeypatch.setattr(FreePolicy, "load", noted)
        asyncio.run(alternate.alternate(config, steps=4, lag=lag))
        assert len(loads) == updates + 1  # and once before the evaluation
        monkeypatch.undo()


def explored(policy: Policy, config: RunConfig, count: int, teacher: Guidance = "") -> list[Group]:
    tasks = exploring.tasks("workshop", count)

    async def explore() -> list[Group]:
        return await asyncio.gather(
            *map(explorer(config.algorithm, policy, config, teacher), tasks)
        )

    return asyncio.run(explore())


def test_the_policy_is_the_trainer_of_the_step_before(model_folder: Path) -> None:
    config = small(model_folder, "algorithm=opmd", "learner.lr=0.1")
    learner, gaps = Learner(config), []
    for learner.lag in (0, 9, 9):
        batch = Batch(rewarded(explored(learner.policy, config, 1)))
        gaps.append(learner.learn(batch).metrics["learner/behaviour_kl"])
    assert max(gaps[:2]) < 1e-6 < 1e-2 < gaps[2] and learner.policy.version == 1


def test_the_learning_rate_is_warmed_up(model_folder: Path) -> None:
    settings = ("algorithm=opmd", "learner.lr=0.1", "learner.warmup_steps=2")
    config = small(model_folder, *settings)
    learner = Learner(config)
    batch = Batch(rewarded(explored(learner.policy, config, 1)))
    rates = [learner.learn(batch).metrics["learner/lr"] for _ in range(3)]
    assert rates == pytest.approx([0.05, 0.1, 0.1])


def test_groups_without_contrast_are_replaced_until_the_batch_is_full_or_there_were_enough_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drawn: list[str] = []
    never = False

    async def explore(algorithm: object, task: Task, *_: object, **__: object) -> Group:
        """The tasks with an odd seed have contrast."""
        drawn.append(task.task_id[-2:])
        return explore_group((0.0, 0.0 if never else float(task.seed % 2)), ())

    def fill(*settings: str) -> tuple[int, int]:
        drawn.clear()
        shared = ["learner.groups_per_step=4", "env.train_tasks=6"]
        direct = Direct(configuration.load(None, [*shared, *settings]))
        batch, groups = asyncio.run(direct.batch(cast(Policy, None), 0))
        return len(batch.groups), len(groups)

    monkeypatch.setattr(exploring, "explore", explore)
    assert fill("algorithm=grpo") == fill("algorithm=dapo", "algorithm.filter=false") == (4, 4)
    assert fill("algorithm=dapo") == (4, 8)
    assert drawn == ["00", "01", "02", "03", "04", "05", "00", "01"]  # 4, then 2, 1 and 1
    never = True
    assert fill("algorithm=dapo") == (0, 4 * ROUNDS)


def test_reflections_are_not_constrained_to_their_schema(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, sample = [], LocalPolicy.sample

    async def noted(policy, token_ids, params):  # type: ignore[no-untyped-def]
        asked.append(params)
        return await sample(policy, token_ids, params)

    monkeypatch.setattr(LocalPolicy, "sample", noted)
    config = configuration.load(None, ["model=builtin", "actor.max_reflection_tokens=99"])
    [group] = explored(FreePolicy("builtin"), config, 1)
    assert [params.max_tokens for params in asked].count(99) == len(group.reflections) == 4
    assert {params.json_schema for params in asked} == {None}


def test_the_teacher_reflects_on_the_attempt_that_was_played() -> None:
    config = configuration.load(None, ["model=builtin", "algorithm=r3l"])
    groups = explored(FreePolicy("builtin"), config, 4, teacher="useful")
    thoughts = [thought for group in groups for thought in group.reflections]
    assert len(thoughts) == 16 and not any(thought.cause for thought in thoughts)
    env = lessons.demonstrating("workshop")
    for group in groups:
        for thought in group.reflections:
            env.reset(seed=group.task.seed, options=group.task.options)
            for action in group.trajectories[thought.of].actions:
                env.step(action)
            assert json.loads(thought.text) == env.reflection()


def test_a_command_stopped_half_way_makes_only_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Run] = []

    def fake(missing, jobs, lines, policies):  # type: ignore[no-untyped-def]
        made[:] = missing
        return True

    monkeypatch.setattr("lab.results.__main__._make_all", fake)
    monkeypatch.setattr(page, "write", lambda *_: None)
    arguments = ["--only", "e0", "--variant", "grpo", "--lines", str(tmp_path / "lines")]
    assert invoke(*arguments) == (0, "") and [run.seed for run in made] == [0, 1, 2, 3, 4]
    (tmp_path / "lines").mkdir()
    write(tmp_path / "lines" / "e0.jsonl", [line_of(run) for run in made[:2]])
    assert invoke(*arguments) == (0, "") and [run.seed for run in made] == [2, 3, 4]
    made.clear()
    assert invoke(*arguments, "--first-seed", "3") == (0, "")
    assert [run.seed for run in made] == [3, 4]


def test_another_warm_policy_has_runs_and_lines_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Run] = []

    def fake(missing, jobs, lines, policies):  # type: ignore[no-untyped-def]
        made[:] = missing
        return True

    monkeypatch.setattr("lab.results.__main__._make_all", fake)
    monkeypatch.setattr(page, "write", lambda *_: None)
    chosen = ["--only", "e1", "--cell", "base-0.13-rho-1", "--variant", "r3l", "--seeds", "2"]
    arguments = [*chosen, "--lines", str(tmp_path)]
    first = next(run for run in runs(("e1",)) if run.key == ("base-0.13-rho-1", "r3l", 0))
    second = first.with_policy(1)
    assert first.setup() != second.setup() and first.with_policy(0) == first
    write(tmp_path / "e1.jsonl", [line_of(first), line_of(second) | {"policy": 1}])
    for policy in ("0", "1"):
        assert invoke(*arguments, "--policy", policy) == (0, "")
        assert [(run.seed, run.cell.number) for run in made] == [(1, int(policy))]
    assert invoke("--only", "e0", "--policy", "1", "--lines", str(tmp_path)) == (0, "")
    assert made == []  # the easiest world has one policy
    write(tmp_path / "e1.jsonl", [line_of(second)])
    assert "is a run of another setup" in invoke(*arguments)[1]


@pytest.mark.nightly
@pytest.mark.system
def test_a_command_that_is_killed_leaves_nobody_and_its_run_is_made_again(tmp_path: Path) -> None:
    lines = tmp_path / "lines"
    lines.mkdir()
    kept = [line for line in read_lines(LINES / "e0.jsonl") if line["variant"] == "warm"][:4]
    write(lines / "e0.jsonl", kept)
    before = (lines / "e0.jsonl").read_bytes()
    arguments = ["--only", "e0", "--variant", "warm", "--lines", str(lines)]
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with command(arguments) as killed:
            until(lambda killed=killed: len(listening(killed)) > 0)
            children = family(killed)
            killed.send_signal(sign)
            assert killed.wait(10) == -sign
        until(lambda children=children: not any(map(lives, children)))
        assert (lines / "e0.jsonl").read_bytes() == before
    with command(arguments) as again:
        assert again.wait(300) == 0
    assert (lines / "e0.jsonl").read_bytes().startswith(before)
    assert [line["seed"] for line in read_lines(lines / "e0.jsonl")] == [0, 1, 2, 3, 4]


@pytest.mark.nightly
@pytest.mark.system
def test_a_warm_up_ends_with_the_command_that_is_killed(tmp_path: Path) -> None:
    chosen = ["--only", "e1", "--cell", "base-0.13-rho-1", "--variant", "grpo", "--seeds", "1"]
    folders = ["--lines", str(tmp_path / "lines"), "--policies", str(tmp_path / "policies")]
    with command([*chosen, *folders]) as killed:
        until(lambda: any("learner.cli" in command_line(member) for member in family(killed)))
        members = family(killed)
        assert len(members) >= 2
        killed.kill()
    until(lambda: not any(map(lives, members)))
    assert not (tmp_path / "policies" / "base-0.13-rho-1" / "warmup.json").exists()


def command(arguments: list[str]) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-m", "lab.results", *arguments], cwd=ROOT)


def family(parent: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    return psutil.Process(parent.pid).children(recursive=True)


def listening(parent: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """The members of the family of a command that have a handler for SIGTERM."""

    def caught(member: psutil.Process) -> int:
        with suppress(OSError):  # it has ended
            rows = Path(f"/proc/{member.pid}/status").read_text().splitlines()
            return next(int(row.split()[1], 16) for row in rows if row.startswith("SigCgt"))
        return 0

    return [member for member in family(parent) if caught(member) & 1 << (signal.SIGTERM - 1)]


def test_lines_of_another_setup_are_refused_by_name(tmp_path: Path) -> None:
    run = next(runs(("e0",)))
    write(tmp_path / "e0.jsonl", [line_of(run) | {"setup": "0"}])
    code, said = invoke("--page", "--lines", str(tmp_path))
    said_of = "base-0.25-rho-2.3 warm 0 is a run of another setup"
    assert code == 2 and f"{tmp_path / 'e0.jsonl'}:1: {said_of}" in said
    write(tmp_path / "e0.jsonl", [])
    for name in ("e4", "e5", "e8", "warm"):
        line, *_ = read_lines(LINES / f"{name}.jsonl")
        for wrong in ({"setup": "0"}, {"groups": 1} if name == "e4" else {"cell": "no such cell"}):
            write(tmp_path / f"{name}.jsonl", [line | wrong])
            code, said = invoke("--page", "--lines", str(tmp_path))
            assert code == 2 and said.count("\n") == 1
            assert f"{name}.jsonl:1: " in said and "is a run of another setup" in said
        (tmp_path / f"{name}.jsonl").unlink()
    (tmp_path / "e0.jsonl").write_text('{"half')
    code, said = invoke("--page", "--lines", str(tmp_path))
    assert code == 2 and "not a line of JSON" in said and said.count("\n") == 1


@pytest.mark.parametrize("name", ["e1", "e4", "e5", "e8", "warm"])
def test_a_line_that_the_page_cannot_use_ends_the_command_with_its_place(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "lines").mkdir()
    (tmp_path / "lines" / f"{name}.jsonl").write_text("{}\n")
    code, said = invoke("--page", "--lines", str(tmp_path / "lines"))
    assert code == 2 and f"{name}.jsonl:1: " in said and said.count("\n") == 1
    assert not (tmp_path / "lines" / "docs").exists()


@pytest.mark.parametrize(
    "arguments", [("--only", "e99"), ("--cell", "base-2"), ("--variant", "ppo")]
)
def test_an_unknown_name_is_answered_with_those_that_exist(arguments: tuple[str, str]) -> None:
    code, said = invoke(*arguments)
    assert code == 2 and repr(arguments[1]) in said and said.count("\n") == 1


def test_r3l_trains_on_all_auxiliary_samples_in_every_variant_but_the_capped() -> None:
    limits = {}
    for run in runs():
        algorithm = run.config("builtin").algorithm
        if algorithm.name == "r3l":
            limits[run.variant] = algorithm.sft_share
    assert limits.pop("sft_quarter") == 0.25
    assert len(limits) > 15 and set(limits.values()) == {None}


def test_every_setting_and_budget_changes_the_setup() -> None:
    run = next(r for r in runs(("e1",)) if r.variant == "grpo")
    others = [
        changed(run, variant="r3l"),
        changed(run, seed=1),
        changed(run, tokens=5),
        changed(run, cell=changed(run.cell, steps=1)),
        changed(run, cell=changed(run.cell, withheld=1)),
    ]
    assert len({one.setup() for one in (run, *others)}) == 6
    assert run.setup() == next(r for r in runs(("e1",)) if r.variant == "grpo").setup()


def test_every_experiment_names_variants_and_cells_that_exist() -> None:
    for part in (part for parts in EXPERIMENTS.values() for part in parts):
        assert set(part.cells) <= set(CELLS) and set(part.variants) <= set(VARIANTS)
    everything = list(runs())
    assert len({(run.experiment, *run.key) for run in everything}) == len(everything)


def test_the_pages_are_made_from_the_committed_lines_alone() -> None:
    pages = page.render(finished(LINES), LINES)
    others = {
        APPENDIX / f"{name}.md"
        for name in "agents comparisons performance rare runs smollm2".split()
    }
    assert set(APPENDIX.glob("*.md")) - others < set(pages) and WORTH in pages
    for path, text in pages.items():
        assert text == path.read_text(encoding="utf-8"), path
        assert "\n> " not in text, f"{path}: a bound at the start of a line is a quotation"


def test_a_cost_is_the_mean_of_the_runs_that_got_there_and_says_how_many_did() -> None:
    def made(*shares: float) -> dict[str, object]:
        return {"curve": {"tokens": [9] * len(shares), "success_base": shares}}

    there, also, never = made(1.0), made(0.0, 1.0), made(0.0)
    assert tables._costs([there, also], 0.5, "steps") == "2 ± 1"
    assert tables._costs([there, also, never], 0.5, "steps") == "2 ± 1 (2 of 3)"
    assert tables._costs([never], 0.5, "steps") == "–"


def test_the_price_of_a_token_is_compared_in_runs_of_the_same_seed_and_machine() -> None:
    cell = "base-0.13-rho-1"

    def made(variant: str, seed: int, cpu: float, machine: str = "one") -> dict[str, object]:
        named = {"experiment": "e11", "cell": cell, "variant": variant, "seed": seed}
        return named | {"machine": machine, "cpu": cpu, "tokens": 1000}

    plain = [made("grpo_no_kl", 0, 2.0), made("grpo_no_kl", 1, 4.0), made("grpo_no_kl", 2, 9.0)]
    ours = [made("sft_none", 0, 3.0), made("sft_none", 2, 9.0, machine="another")]
    both = [made("r3l", 0, 4.0), made("r3l", 1, 8.0)]
    rows = tables.per_token([*plain, *ours, *both], "e11", "grpo_no_kl").splitlines()[2:]
    found = {row.split(" | ")[1]: row.split(" | ")[2:] for row in rows}
    assert found["R³L"] == ["6.00 ± 2.83", "2.00 (2.00, 2.00)", "2 |"]
    assert found["without auxiliary loss"] == ["6.00 ± 4.24", "1.50 (one seed)", "2 |"]
    assert found["GRPO without reference"][1] == "1"


def test_equal_compute_has_every_cell_of_the_map() -> None:
    made = list(runs(("e11",)))
    cells = {name for name, cell in CELLS.items() if cell.world is not None}
    for variant in ("grpo_no_kl", "sft_none", "sft_quarter"):
        assert {run.cell.name for run in made if run.variant == variant} == cells
    assert {run.seed for run in made} == {0, 1, 2}


def line_of(run: Run) -> dict[str, object]:
    named = {"experiment": run.experiment, "cell": run.cell.name, "variant": run.variant}
    curve = {"tokens": [9], "cpu": [0.5], "success_base": [None]}
    measured = {"success": 0.5, "steps": 1, "attempts": 8, "curve": curve}
    return named | {"seed": run.seed, "setup": run.setup()} | measured


def write(file: Path, lines: list[dict[str, object]]) -> None:
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))


def rewarded(groups: list[Group]) -> list[Group]:
    """The groups as if every second attempt had succeeded."""

    def with_reward(result: SlotResult) -> SlotResult:
        trajectory = replace(result.trajectory, reward=float(result.slot % 2))
        return replace(result, trajectory=trajectory)

    return [replace(g, results=tuple(map(with_reward, g.results))) for g in groups]
