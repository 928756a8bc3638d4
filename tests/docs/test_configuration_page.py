"""docs/configuration.md says what the code does."""

from pathlib import Path

from benchmarks.configuration_page import page, sections
from r3l.run.config import RunConfig
from r3l.settings.section import Section


def test_the_page_is_current():
    written = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert written.read_text("utf-8") == page(), "run make docs"


def test_every_setting_is_on_the_page_with_its_meaning():
    text = page()

    def check(section: type[Section]) -> None:
        for name, field in section.model_fields.items():
            inner = list(sections(field.annotation))
            assert field.description or inner, f"{section.__name__}.{name} has no description"
            if field.description:
                assert f"{name}` | " in text and field.description.replace("|", "\\|") in text
            for each in inner:
                check(each)

    check(RunConfig)
