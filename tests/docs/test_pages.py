"""What the pages say is so: links, paths, tests, settings and commands exist."""

import fnmatch
import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from actors.agent_cli import main as agent
from actors.cli import main as actor
from actors.dialects import fields
from buffer.cli import main as buffer
from buffer.groups.states import MOVES
from buffer.wire.operations import OPERATIONS
from envs.cli import main as env
from envs.testing import check_env
from launch.cli import DEFAULT
from launch.cli import main as launch
from launch.eval_cli import main as evaluate
from learner.cli import main as learner
from r3l.algorithms.algorithm import Algorithm
from r3l.errors import UserError
from r3l.run import config
from r3l.settings.section import Section

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "lab" / "README.md",
    ROOT / "tests" / "README.md",
    ROOT / "tests" / "reports.md",
    ROOT / "tests" / "buffer" / "README.md",
]
ROOMS = "r3l|buffer|envs|actors|learner|launch|benchmarks|lab|tests|docs"
COMMANDS = {
    "r3l-launch": launch,
    "r3l-actor": actor,
    "r3l-agent": agent,
    "r3l-env": env,
    "r3l-learner": learner,
    "r3l-buffer": buffer,
    "r3l-eval": evaluate,
}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def test_the_readme_has_at_most_900_words():
    words = (ROOT / "README.md").read_text("utf-8").split()
    assert sum(any(map(str.isalnum, word)) for word in words) <= 900


@pytest.mark.parametrize("page", ["README.md", "docs/environments/README.md"])
def test_the_example_of_an_environment_keeps_the_promises_of_one(page, tmp_path):
    text = (ROOT / page).read_text("utf-8")
    found = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (example,) = (block for block in found if "class Door" in block)
    (tmp_path / "door.py").write_text(example)
    check_env(f"{tmp_path}/door.py:Door")


def test_the_life_of_a_group_has_the_moves_of_the_code():
    page = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    _, table = page.split("| from | to | when |\n|---|---|---|\n")
    rows = [row.split(" | ") for row in table.partition("\n\n")[0].splitlines()]
    shown = {(start, end) for starts, end, _ in rows for start in starts[2:].split(", ")}
    assert shown == {move for move in MOVES if len(set(move)) == 2}


def test_the_gateways_page_has_the_table_of_a_requests_fields():
    assert fields.markdown() in (ROOT / "docs" / "agents" / "gateway.md").read_text("utf-8")


def test_every_operation_of_the_buffer_is_listed_with_who_uses_it():
    page = (ROOT / "docs" / "buffer.md").read_text("utf-8")
    _, table = page.split("| operation | who | what it does |\n")
    rows = [row.split(" | ")[0] for row in table.partition("\n\n")[0].splitlines()]
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == set(OPERATIONS)


@cache  # seven tests read it
def code(page: Path) -> list[str]:
    """Every code span, and every line of every code block, of a page."""
    text = page.read_text("utf-8")
    fenced = re.findall(r"^```.*?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    text = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    blocks = re.findall(r"(?:^(?: {4}.*)?\n)+", text, re.MULTILINE)
    lines = [line.strip() for block in (*fenced, *blocks) for line in block.splitlines()]
    return [*re.findall(r"`([^`\n]+)`", text), *filter(None, lines)]


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings."""
    headings = re.findall(r"^#+ +(.*)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_every_relative_link_leads_to_a_file_and_a_heading(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if not re.match(r"https?://", target):
            file, _, anchor = target.partition("#")
            linked = (page.parent / file) if file else page
            assert linked.exists(), target
            assert not anchor or anchor in anchors(linked), target


@each_page
def test_every_path_that_is_named_exists(page):
    metrics = (ROOT / "docs" / "metrics.md").read_text("utf-8")
    for span in code(page):
        for path in re.findall(rf"(?<![\w./-])(?:{ROOMS})/[\w./*-]*", span):
            assert list(ROOT.glob(path.rstrip("/"))) or f"`{path}" in metrics, path


def test_every_name_that_a_change_leads_to_is_in_the_file_beside_it():
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    found = re.findall(r"((?:`[\w.=]+`(?:, | and )?)+) (?:in |of |\()`([\w/]+\.\w+)`", text)
    assert len(found) > 80
    for names, path in found:
        code = (ROOT / path).read_text("utf-8")
        for name in re.findall(r"`([\w.=]+)`", names):
            last = name.rstrip("=").split(".")[-1]
            assert re.search(rf"\b{last}\b", code), f"{name} is not in {path}"


@each_page
def test_every_test_that_is_named_exists(page):
    """Named as `tests/room/test_x.py::test_…`, `test_x::…part…`, or `…part…` of the same file."""
    named = re.compile(r"((?:lab/)?tests/[\w/]*?)?(test_\w+)(?:\.py)?(?:::([\w…]+))?|(…[\w…]+)")
    tests, file = ROOT / "tests", ROOT
    for found in filter(None, map(named.fullmatch, code(page))):
        folder, stem, pattern, more = found.groups()
        if stem:
            near = page.parent if tests in page.parents else tests
            (file,) = (ROOT / folder).glob(f"{stem}.py") if folder else near.rglob(f"{stem}.py")
        if pattern or more:
            names = re.findall(r"def (test_\w+)", file.read_text("utf-8"))
            assert fnmatch.filter(names, (pattern or more).replace("…", "*")), found[0]


@each_page
def test_every_make_target_that_is_named_exists(page):
    targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for span in code(page):
        for target in re.findall(r"^make ([a-z-]+)", span):
            assert target in targets, target


@each_page
def test_every_setting_that_is_named_exists(page):
    sections = "|".join(config.RunConfig.model_fields)
    for span in code(page):
        for key in re.findall(rf"(?<![\w./-])(?:{sections})(?:\.[a-z_]\w*)+", span):
            assert is_setting(key) or is_python(key), key


@each_page
def test_every_command_that_is_shown_is_understood(page):
    for line in code(page):
        for words in commands(line):
            context = parsed(COMMANDS[words[0]], words)
            overrides = context.params.get("overrides") or ()
            try:
                config.load(None, overrides)
            except UserError as error:
                pytest.fail(f"{line}: {error}")


def commands(line: str) -> Iterator[list[str]]:
    """The r3l commands of a line that have arguments, as words."""
    if line.startswith(tuple(COMMANDS)) and "──" not in line:
        words = shlex.split(line, comments=True)
        words = words[: words.index(">")] if ">" in words else words
        if words[0] in COMMANDS and len(words) > 1:
            yield words


def parsed(command: click.Command, words: list[str]) -> click.Context:
    """The arguments as the command reads them; fails where it does not understand them."""
    name, *arguments = words
    try:
        if isinstance(command, click.Group):
            if command is launch and (arguments[0].startswith("-") or "=" in arguments[0]):
                arguments.insert(0, DEFAULT)
            found, *arguments = arguments
            group, command = command, command.get_command(click.Context(command), found)
            assert command is not None, f"{name} {found} of {group.name}"
        return command.make_context(name, arguments, resilient_parsing=not arguments)
    except click.exceptions.Exit:  # it was an option that prints and ends, such as --version
        return click.Context(command)
    except click.UsageError as error:
        pytest.fail(f"{shlex.join(words)}: {error.message}")


def is_setting(key: str) -> bool:
    """Whether a dotted key is a field, or a section, of the configuration."""
    kinds: list[type[Section]] = [config.RunConfig]
    for part in key.split("."):
        fields = [kind.model_fields[part] for kind in kinds if part in kind.model_fields]
        if not fields:
            return False
        if any("dict" in str(field.annotation) for field in fields):
            return True  # whatever follows is passed through
        kinds = [kind for field in fields for kind in sections_of(field.annotation)]
    return True


def sections_of(annotation: object) -> list[type[Section]]:
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    return [found for part in getattr(annotation, "__args__", ()) for found in sections_of(part)]


def is_python(name: str) -> bool:
    """Whether a dotted name is a module of the project, something defined in one, or a method of
    an algorithm."""
    module, _, attribute = name.rpartition(".")
    if module == "algorithm" and hasattr(Algorithm, attribute):
        return True
    path = ROOT / module.replace(".", "/")
    defined = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    if (
        attribute
        and defined.is_file()
        and re.search(rf"\b{attribute}\b", defined.read_text("utf-8"))
    ):
        return True
    path = ROOT / name.replace(".", "/")
    return path.is_dir() or path.with_suffix(".py").is_file()
