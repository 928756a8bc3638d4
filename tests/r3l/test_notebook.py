"""Records in a notebook: what a person looks for is there, and no text of an attempt is markup."""

from html.parser import HTMLParser

import pytest
from msgspec.structs import replace

from r3l import notebook
from r3l.records import Group, GroupPlan, ReflectionRecord, SlotResult, Task

HOSTILE = "</pre><script>alert(1)</script><img src=x onerror='go()'>\" $x$ &amp;"
TAGS = {"div", "b", "small", "pre", "details", "summary", "table", "tr", "th", "td"}


class Page(HTMLParser):
    """The tags of a page, which all end in order, and its text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags, self.open, self.text = set[str](), list[str](), ""
        self.attributes = set[str]()
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.open.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture
def group(make_trajectory):
    """A base of three hostile steps that failed and its retry from step 1."""
    base = make_trajectory([2, 3, 4], reward=0.25)
    retry = make_trajectory([2, 3, 4], role="distilled", parent=0, pivot=1, reward=1.0)
    hostile = {
        "system": HOSTILE,
        "observations": (HOSTILE,) * 4,
        "actions": (HOSTILE,) * 3,
        "feedback": HOSTILE,
        "finish": HOSTILE,
    }
    thought = ReflectionRecord(HOSTILE, cause="not_json")
    results = (
        SlotResult("base", 0, "done", trajectory=replace(base, **hostile)),
        SlotResult("base", 1, "failed", cause=HOSTILE, reflection=thought),
        SlotResult("distilled", 0, "done", trajectory=replace(retry, **hostile)),
    )
    task = Task(HOSTILE, HOSTILE, 0)
    plan = GroupPlan(2, 2)
    return Group("g1", task, plan, "expired", results, cause=HOSTILE, tag=HOSTILE)


def test_every_text_of_a_record_is_shown_as_text(group) -> None:
    for record in (group, *group.results, *group.trajectories):
        page = Page(record._repr_html_())
        assert page.tags <= TAGS and page.attributes <= {"class", "style"}
        assert HOSTILE in page.text


def test_a_group_says_task_state_rewards_by_role_and_versions(group) -> None:
    text = Page(replace(group, task=Task("t", "e", 0), cause="", tag="")._repr_html_()).text
    for told in ("group g1", "task t", "state expired", "base rewards 0.25", "retry rewards 1",
                 "versions 0 to 0", "tokens 16", "open slots 1",
                 "distilled 0 from step 1: reward 1, 3 steps"):  # fmt: skip
        assert told in text, told


def test_the_steps_that_were_sampled_for_an_attempt_are_marked(make_trajectory) -> None:
    retry = make_trajectory([2, 3, 4], role="distilled", parent=0, pivot=1)
    html = retry._repr_html_()
    assert html.count("#2a2") == 2  # steps 1 and 2
    text = Page(html).text
    assert "step 0: its prefix" in text and "step 1: 3 tokens, version 0 (pivot)" in text
    assert "step 2: 4 tokens, version 0action 2" in text
    assert make_trajectory([2, 3, 4])._repr_html_().count("#2a2") == 3


def test_a_group_without_attempts_is_shown() -> None:
    empty = Group("g2", Task("t", "e", 0), GroupPlan(2), "leased")
    assert "versions" not in Page(empty._repr_html_()).text


def test_a_long_text_is_cut_and_numbers_are_short() -> None:
    assert notebook.shown("<" * 3005) == "&lt;" * 3000 + " … 5 more characters"
    assert [notebook.shown(value) for value in (0.12345, 3, None)] == ["0.123", "3", "None"]
