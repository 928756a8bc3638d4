"""Reads a task's folder in Harbor's format, and checks it before anything starts.

    task.toml         limits, variables, what the task needs
    instruction.md    what the agent is asked to do
    environment/      a Dockerfile and the files that it copies
    tests/test.sh     writes the reward to /logs/verifier
    solution/solve.sh solves the task; it may be missing

Names and defaults are those of Harbor 0.26, https://www.harborframework.com/docs/tasks.
"""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.agents.task_folders.dockerfile import Image, read_dockerfile
from envs.agents.task_folders.private_view import MOST_BYTES, OWN
from r3l.errors import UserError
from r3l.files.user_file import read_text

CONFIG, INSTRUCTION = "task.toml", "instruction.md"
SCHEMAS = ("1.0", "1.1", "1.2", "1.3", "1.4")
"""Versions of task.toml that this module reads."""
WORKDIR = "/app"
"""The working directory of a task that names none."""
TESTS_S = 600.0
"""Time limit of tests without `timeout_sec`, seconds."""
OF_MACHINE = frozenset(
    "bin boot dev etc home lib lib32 lib64 libx32 mnt opt proc root run sbin srv sys tmp usr var"
    .split()
)  # fmt: skip
"""Folders of the root that a view shows as they are on this machine."""
_CANARY = re.compile(r"(<!--.*canary.*-->|#.*canary.*)", re.I)
_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_COMPOSE = ("docker-compose.yaml", "docker-compose.yml", "singularity-compose.yaml")


@dataclass(frozen=True)
class HarborTask:
    """A task. `agent_s`, `tests_s`: time limits of the agent (None: no limit of its own) and of the
    tests, seconds. `variables`, `tests_variables`, `solution_variables`: environment variables as
    task.toml has them. `image`: what the Dockerfile says; None without one. `containers`: why the
    task needs a container; "" if it needs none."""

    folder: Path
    instruction: str
    agent_s: float | None
    tests_s: float
    variables: dict[str, str]
    tests_variables: dict[str, str]
    solution_variables: dict[str, str]
    workdir: str
    image: Image | None
    containers: str

    @property
    def solution(self) -> Path:
        return self.folder / "solution" / "solve.sh"


def task_folders(folder: str) -> list[Path]:
    """Returns the folder itself if it is a task, or else its subfolders that are tasks, by name.
    Raises UserError if there is none."""
    root = Path(folder).expanduser().resolve()
    if _looks_like_task(root):
        return [root]
    found = sorted(path for path in root.iterdir() if path.is_dir() and _looks_like_task(path))
    if not found:
        raise UserError(
            f"env agent: tasks {folder}: is a folder without tasks; name one in Harbor's format, "
            f"with {CONFIG}, {INSTRUCTION} and tests/test.sh, or a folder of such folders"
        )
    if links := [path for path in found if path.is_symlink()]:
        raise UserError(
            f"env agent: task {links[0]}: is a link to {os.readlink(links[0])!r:.200}, where an "
            "agent would find its tests; put the folder itself there"
        )
    return found


def _looks_like_task(path: Path) -> bool:
    return any((path / name).exists() for name in (CONFIG, INSTRUCTION))


def read_task(folder: Path) -> HarborTask:
    """Reads and checks a task. Raises UserError, in one line with the path and what to do."""
    what = f"env agent: task {folder}"
    try:
        return _read(folder, what)
    except UserError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{what}: cannot be read ({error!s:.200}); correct its files") from None


def _read(folder: Path, what: str) -> HarborTask:
    config = _config(folder, what)
    _check_links(folder, what)
    text = _instruction(folder, what)
    _check_files(folder, config, what)
    agent, tests = _table(config, "agent", what), _table(config, "verifier", what)
    world, solution = _table(config, "environment", what), _table(config, "solution", what)
    dockerfile = folder / "environment" / "Dockerfile"
    image = (
        read_dockerfile(read_text(dockerfile, f"{what}: environment/Dockerfile", "correct it"))
        if dockerfile.is_file()
        else None
    )
    workdir = _workdir(world, image, what)
    return HarborTask(
        folder=folder,
        instruction=text,
        agent_s=_seconds(agent, "agent", what),
        tests_s=_seconds(tests, "verifier", what) or TESTS_S,
        variables=_check_variables(image.variables if image else {}, "environment/Dockerfile", what)
        | _variables(world, "environment", what),
        tests_variables=_variables(tests, "verifier", what),
        solution_variables=_variables(solution, "solution", what),
        workdir=workdir,
        image=image,
        containers=_why_containers(folder, config, workdir, image),
    )


def filled(variables: Mapping[str, str], environ: Mapping[str, str], what: str) -> dict[str, str]:
    """Puts variables of this process in place of `${NAME}` and `${NAME:-default}`. Raises UserError
    if one is missing."""
    found = {}
    for name, value in variables.items():
        if template := _TEMPLATE.fullmatch(value):
            value = environ.get(template[1], template[2])
            if value is None:
                raise UserError(
                    f"{what}: {CONFIG}: {name} needs the environment variable {template[1]}, which "
                    "is not set here; set it, and list it in env.pass_environment if it is a key"
                )
        found[name] = value
    return found


def _config(folder: Path, what: str) -> dict[str, Any]:
    if not (folder / CONFIG).is_file():
        raise UserError(f"{what}: has no {CONFIG}; add one, such as schema_version = '1.4'")
    text = read_text(folder / CONFIG, f"{what}: {CONFIG}", "write it in TOML")
    try:
        config = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of a number that is too long
        raise UserError(f"{what}: {CONFIG}: is not TOML ({error!s:.200}); correct it") from None
    version = config.get("schema_version", config.get("version", SCHEMAS[-1]))
    if str(version) not in SCHEMAS:
        raise UserError(
            f"{what}: {CONFIG}: schema_version {version!r:.40}: r3l reads {SCHEMAS[0]} to "
            f"{SCHEMAS[-1]}; write the task in one of these"
        )
    return config


def _instruction(folder: Path, what: str) -> str:
    """Returns the instruction, without the lines that mark benchmarks and blank lines at its
    head."""
    if (folder / "steps").is_dir() and not (folder / INSTRUCTION).exists():
        raise UserError(f"{what}: has several steps, which r3l does not play; leave it out")
    if not (folder / INSTRUCTION).is_file():
        raise UserError(f"{what}: has no {INSTRUCTION}; write there what the agent is to do")
    text = read_text(folder / INSTRUCTION, f"{what}: {INSTRUCTION}", "write it as text")
    lines = text.splitlines()
    while lines and (not lines[0].strip() or _CANARY.fullmatch(lines[0].strip())):
        del lines[0]
    if not lines:
        raise UserError(f"{what}: {INSTRUCTION} is empty; write there what the agent is to do")
    return "\n".join(lines)


def _check_files(folder: Path, config: dict[str, Any], what: str) -> None:
    if config.get("steps"):
        raise UserError(f"{what}: has several steps, which r3l does not play; leave it out")
    world = config.get("environment")
    world = world if isinstance(world, dict) else {}
    if str(world.get("os", "linux")).lower() != "linux":
        raise UserError(f"{what}: is for {world['os']!r:.40}; r3l plays tasks for linux")
    if not (folder / "tests" / "test.sh").is_file():
        raise UserError(f"{what}: has no tests/test.sh; write there what gives the reward")
    if not (folder / "environment").is_dir() and not world.get("docker_image"):
        raise UserError(f"{what}: has no environment/; add it, with a Dockerfile")


def _check_links(folder: Path, what: str) -> None:
    """Raises UserError for a link that leads out of the task or to nothing, for anything that is
    not a file, and for tests that no attempt can get."""
    for path in _all_paths(folder):
        name = path.relative_to(folder)
        if path.is_symlink():
            link = f"{what}: {name} is a link to {os.readlink(path)!r:.200}"
            try:
                inside = path.resolve(strict=True).is_relative_to(folder)
            except (OSError, RuntimeError):
                inside = True
            if not inside:
                raise UserError(f"{link}, outside of the task; put the file itself there")
            if not path.exists():
                raise UserError(f"{link}, which leads nowhere; correct it, or leave it out")
        elif not path.is_dir() and not path.is_file():
            raise UserError(f"{what}: {name} is a pipe, socket or device; leave it out")
    for part in ("tests", "solution"):
        if (folder / part).is_dir() and (size := _size(folder / part, (), what)) > MOST_BYTES:
            raise UserError(f"{what}: {part} has {size} bytes, more than {MOST_BYTES}; shorten it")


def _size(folder: Path, above: tuple[Path, ...], what: str) -> int:
    """Returns the bytes of a folder, with those behind links. Raises UserError for a loop."""
    real, size = folder.resolve(), 0
    if real in above:
        raise UserError(f"{what}: {folder} leads to a folder that contains it; remove the link")
    for path in folder.iterdir():
        is_folder = path.is_dir()
        size += _size(path, (*above, real), what) if is_folder else path.stat().st_size
    return size


def _all_paths(folder: Path) -> Iterator[Path]:
    for inside, folders, files in os.walk(folder):
        yield from (Path(inside, name) for name in (*folders, *files))


def _table(config: dict[str, Any], name: str, what: str) -> dict[str, Any]:
    table = config.get(name, {})
    if not isinstance(table, dict):
        raise UserError(f"{what}: {CONFIG}: {name} is {table!r:.40}; write a table [{name}]")
    return table


def _seconds(table: dict[str, Any], name: str, what: str) -> float | None:
    value = table.get("timeout_sec")
    if wrong := [key for key in table if key.startswith("timeout") and key != "timeout_sec"]:
        raise UserError(
            f"{what}: {CONFIG}: {name}.{wrong[0]} is not a key of Harbor; write timeout_sec"
        )
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
        raise UserError(
            f"{what}: {CONFIG}: {name}.timeout_sec is {value!r:.40}; write seconds above 0"
        )
    return float(value)


def _variables(table: dict[str, Any], name: str, what: str) -> dict[str, str]:
    found = table.get("env", {})
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise UserError(f"{what}: {CONFIG}: {name}.env is {found!r:.80}; write NAME = 'text' lines")
    return _check_variables(found, f"{CONFIG}: {name}.env", what)


def _check_variables(variables: dict[str, str], where: str, what: str) -> dict[str, str]:
    """Raises UserError for a variable that no process can have."""
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise UserError(
                f"{what}: {where}: {name!r:.80} cannot be set; write a name without =, and a value "
                "without NUL"
            )
    return dict(variables)


def _workdir(world: dict[str, Any], image: Image | None, what: str) -> str:
    workdir = world.get("workdir") or (image and image.workdir) or WORKDIR
    if not isinstance(workdir, str) or not workdir.startswith("/") or "\0" in workdir:
        raise UserError(
            f"{what}: {CONFIG}: environment.workdir is {workdir!r:.80}; write an absolute path "
            f"such as {WORKDIR}"
        )
    return os.path.normpath(f"/{workdir.lstrip('/')}")


def _why_containers(folder: Path, config: dict[str, Any], workdir: str, image: Image | None) -> str:
    """Returns why a task needs a container; "" if it needs none."""
    world, tests = config.get("environment", {}), config.get("verifier", {})
    parts = Path(workdir).parts
    top = parts[1] if len(parts) > 1 else ""
    if compose := [name for name in _COMPOSE if (folder / "environment" / name).exists()]:
        return f"environment/{compose[0]} starts several containers"
    if world.get("mcp_servers"):
        return "environment.mcp_servers are those of its containers"
    if world.get("healthcheck"):
        return "environment.healthcheck waits for a service of its container"
    if tests.get("environment") or tests.get("environment_mode") == "separate":
        return "its tests have a container of their own (verifier.environment_mode)"
    if not top or top in OF_MACHINE or (top not in OWN and os.path.lexists(f"/{top}")):
        return f"its working directory {workdir} is a folder of this machine, or in one"
    if top in OWN and top != "app":
        return f"its working directory {workdir} is one of Harbor's own paths"
    if image is None:
        return ""
    if image.needs:
        return f"its Dockerfile has {image.needs[0]!r:.120}"
    for copy in image.copies:
        if not Path(os.path.normpath(copy.target)).is_relative_to(workdir):
            return f"its Dockerfile copies to {copy.target}, outside of {workdir}"
    return ""
