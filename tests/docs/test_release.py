"""What is released has one version and one date everywhere, and says how to cite it."""

import configparser
import re
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from r3l.run.config import load

ROOT = Path(__file__).parents[2]
VERSION = re.compile(r"^## (\S+) \((\d{4}-\d\d-\d\d)\)$", re.MULTILINE)
OF_A_FILE = {
    "cff-version", "message", "type", "title", "version", "date-released", "license", "authors",
    "keywords", "references", "abstract", "doi", "identifiers", "repository-code", "url",
}  # fmt: skip
OF_A_REFERENCE = {
    "type", "title", "authors", "year", "url", "identifiers", "notes", "doi", "journal",
}  # fmt: skip
"""The keys of version 1.2.0 of the format that r3l may need; it refuses unknown ones."""


def cited() -> dict[str, Any]:
    return dict(yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8")))


def test_setup_the_changelog_and_the_citation_name_one_version_and_one_date():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    version, day = VERSION.findall((ROOT / "CHANGELOG.md").read_text("utf-8"))[0]
    assert setup["metadata"]["version"] == version == str(cited()["version"])
    assert date.fromisoformat(day).isoformat() == str(cited()["date-released"])


def test_the_citation_has_what_its_format_asks_for_and_nothing_else():
    found = cited()
    assert found["cff-version"] == "1.2.0" and found["license"] == "Apache-2.0"
    assert {"message", "title", "authors"} <= found.keys() <= OF_A_FILE
    for work in (found, *found["references"]):
        assert work["title"] and work["authors"]
        for author in work["authors"]:
            assert author.keys() in ({"name"}, {"given-names", "family-names"})
    for work in found["references"]:
        assert work["type"] == "article" and work.keys() <= OF_A_REFERENCE


def test_the_papers_that_are_cited_are_those_that_the_algorithms_page_names():
    page = (ROOT / "docs" / "algorithm.md").read_text("utf-8")
    for work in cited()["references"]:
        (named,) = work["identifiers"]
        number = named["value"].removeprefix("arXiv:")
        assert f"arXiv {number}" in page and work["url"].endswith(number)
        assert load(None, [work["notes"]]).algorithm.name in work["notes"]


def test_the_changelog_of_a_version_has_at_most_80_lines():
    text = (ROOT / "CHANGELOG.md").read_text("utf-8")
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:]:
        assert len(section.splitlines()) <= 80, section[:40]
