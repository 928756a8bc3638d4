"""What a Dockerfile says of the working folder."""

import os

import pytest

from envs.agents.task_folders.dockerfile import Copy, read_dockerfile

TEXT = r"""
# A comment
FROM python:3.12-slim AS base
ARG VERSION=1
ENV HOME_OF=/srv NAME="two words" \
    # within an instruction
    LAST=3
ENV OLD  style value
WORKDIR /srv
WORKDIR task
RUN apt-get update && \
    apt-get install -y curl
COPY --chown=a:b one.txt two.txt ./
COPY ["with space.txt", "${HOME_OF}/x"]
COPY data/ data
ADD plain.txt /srv/task/plain.txt
RUN echo done
CMD ["bash"]
"""


def test_working_directories_copies_and_variables_are_read() -> None:
    image = read_dockerfile(TEXT)
    assert image.workdir == "/srv/task" and image.runs == 2 and not image.needs
    assert image.variables == {
        "HOME_OF": "/srv", "NAME": "two words", "LAST": "3", "OLD": "style value"
    }  # fmt: skip
    assert [(copy.sources, copy.target) for copy in image.copies] == [
        (["one.txt", "two.txt"], "/srv/task/"),
        (["with space.txt"], "/srv/x"),
        (["data/"], "/srv/task/data"),
        (["plain.txt"], "/srv/task/plain.txt"),
    ]


@pytest.mark.parametrize(
    "line",
    [
        "COPY --from=build /a /b",
        "ADD https://example.org/x /app/x",
        "ADD big.tar.gz /app",
        "COPY <<EOF /app/x",
        "COPY only",
        'COPY ["a", 3]',
        'ENV A="open',
        "COPY --exclude=*.key . .",
        "COPY --parents a/b .",
        "COPY --chmod=u+x a .",
        "ENV A=${B:+c}",
        r"ENV A=\$B",
    ],
)
def test_what_only_a_container_can_follow_is_kept(line: str) -> None:
    image = read_dockerfile(f"FROM a\n{line}\n")
    assert image.needs == [line] and not image.copies


def test_a_path_is_added_to_this_machines() -> None:
    image = read_dockerfile('FROM a\nENV PATH="/root/.local/bin:${PATH}"\nENV PATH=/x:$PATH\n')
    assert image.variables["PATH"] == f"/x:/root/.local/bin:{os.environ['PATH']}"


def test_words_may_be_separated_by_tabs_and_modes_are_kept() -> None:
    image = read_dockerfile("FROM\ta\nWORKDIR\t/data/x\nENV\tA\tb\nCOPY\t--chmod=755\ta\t./\n")
    assert (image.workdir, image.variables) == ("/data/x", {"A": "b"})
    assert image.copies == [Copy(["a"], "/data/x/", 0o755)] and not image.needs


def test_arguments_have_their_defaults_and_variables_count_before_them() -> None:
    text = "ARG TOP=t OTHER=o\nFROM a\nARG TOP\nARG D=sub\nARG E=e\nENV E=env\n"
    image = read_dockerfile(f"{text}WORKDIR /app/$D/$E$OTHER\nCOPY $TOP.txt .\n")
    assert image.workdir == "/app/sub/env" and image.copies == [Copy(["t.txt"], "/app/sub/env/")]


def test_only_the_last_stage_counts_and_what_it_begins_from() -> None:
    text = "FROM a AS base\nWORKDIR /base\nCOPY x .\nFROM b AS left\nCOPY --from=c x x\nFROM base\n"
    image = read_dockerfile(f"{text}COPY y .\n")
    assert [copy.sources for copy in image.copies] == [["x"], ["y"]] and not image.needs
    assert read_dockerfile(f"{text}FROM z\n").copies == []


def test_the_lines_of_a_heredoc_are_no_instructions() -> None:
    text = "FROM a\nRUN <<EOF\nCOPY nosuch .\nWORKDIR /no\nEOF\nWORKDIR /app\nRUN echo $((1<<A))\n"
    image = read_dockerfile(f"{text}COPY . .\n")
    assert (image.workdir, image.runs, len(image.copies)) == ("/app", 2, 1)
