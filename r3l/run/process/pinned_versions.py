"""Compares installed libraries with the versions pinned in r3l's extras `cpu` and `gpu`."""

from contextlib import suppress
from importlib import metadata

from r3l.notices import notice


def warn_of_other_versions(*libraries: str) -> None:
    """Writes one notice for each library whose installed version is not the pinned one."""
    required = (line.partition(";")[0].strip() for line in metadata.requires("r3l") or [])
    pins = dict(line.split("==") for line in required if "==" in line)
    for name in libraries:
        with suppress(metadata.PackageNotFoundError):  # the other build of vLLM
            installed = metadata.version(name)
            if installed.partition("+")[0] != pins[name]:
                notice(f"{name} {installed}: r3l is tested with {name}=={pins[name]}; install that")
