"""`make help` lists every target."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_make_help_lists_every_target_and_begins_with_the_two_for_newcomers():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    phony = " ".join(re.findall(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)).split()
    ran = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = re.findall(r"^make ([a-z-]+)\s+\S.*$", ran.stdout, re.MULTILINE)
    assert sorted(listed) == sorted(phony)
    assert listed[:2] == ["demo", "test"]
