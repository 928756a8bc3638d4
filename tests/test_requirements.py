"""What `make` and the Dockerfile install is fixed by version and by hash."""

import configparser
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"^([A-Za-z0-9._-]+)==(\S+) \\\n((?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n?)+)", re.M
)
FILES = {
    "cpu": ("cpu.txt", "deepspeed.txt", "torch-cpu.txt"),
    "gpu": ("gpu.txt", "deepspeed.txt"),
}


def locked(*files: str) -> dict[str, str]:
    """The version of each package in lock files. Every line belongs to a package with hashes."""
    versions: dict[str, str] = {}
    for file in files:
        text = (ROOT / "requirements" / file).read_text()
        assert BLOCK.sub("", text).strip() == "", f"{file} has a line without a version and hashes"
        for name, version, _ in BLOCK.findall(text):
            assert versions.get(canonicalize_name(name), version) == version, f"{name} is twice"
            versions[canonicalize_name(name)] = version
    return versions


@pytest.mark.parametrize("extra", FILES)
def test_the_locked_versions_are_those_that_setup_cfg_asks_for(extra: str) -> None:
    read = configparser.ConfigParser()
    read.read(ROOT / "setup.cfg")
    asked = read["options"]["install_requires"]
    for part in (extra, "dev"):
        asked += "\n" + read["options.extras_require"][part]
    versions = locked(*FILES[extra], "build.txt")
    for line in filter(None, (line.split("#")[0].strip() for line in asked.splitlines())):
        wanted = Requirement(line)
        version = versions[canonicalize_name(wanted.name)]
        assert wanted.specifier.contains(version, prereleases=True), f"{line}: locked is {version}"
    assert not {"torchvision", "torchaudio", "torchcodec"} & versions.keys()


def test_no_build_of_torch_for_gpus_is_among_the_cpu_packages() -> None:
    assert locked(*FILES["cpu"])["torch"].endswith("+cpu")
    assert not [name for name in locked(*FILES["cpu"]) if name.startswith("nvidia-")]


def test_the_image_begins_at_a_digest_and_does_not_run_as_root() -> None:
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    words = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    bases = [line[1] for line in words if line[0] == "FROM"]
    own = {line[3] for line in words if line[0] == "FROM" and len(line) == 4}
    assert all(re.search(r"@sha256:[0-9a-f]{64}$", base) for base in bases if base not in own)
    users = [line[1] for line in words if line[0] == "USER"]
    assert users and "root" not in users
    makes = next(
        n
        for n, line in enumerate(words)
        if "make" in line and line[0] == "RUN" and ".venv" in line[2]
    )
    assert makes > words.index(["USER", users[-1]])
