"""Task folders in Harbor's format, made for tests."""

from pathlib import Path

TOML = 'schema_version = "1.4"\n[agent]\ntimeout_sec = 50\n[verifier]\ntimeout_sec = 20\n'
TEST = """
cat /app/answer > /logs/verifier/reward.txt 2> /dev/null || echo 0 > /logs/verifier/reward.txt
"""
"""The reward is what the agent writes to `answer`; without it 0."""


def made(
    folder: Path,
    name: str = "task",
    *,
    toml: str = TOML,
    test: str | None = TEST,
    instruction: str | None = "Write 1 to /app/answer.",
    solution: str | None = "echo 1 > answer\n",
    dockerfile: str | None = "FROM scratch\nWORKDIR /app\nCOPY . .\n",
) -> Path:
    """Makes a task in a folder. A part that is None is missing."""
    task = folder / name
    for inner in ("environment", "tests", "solution"):
        (task / inner).mkdir(parents=True)
    for path, text in (
        ("task.toml", toml),
        ("instruction.md", instruction),
        ("tests/test.sh", test),
        ("solution/solve.sh", solution),
        ("environment/Dockerfile", dockerfile),
        ("environment/given.txt", "given\n"),
    ):
        if text is not None:
            (task / path).write_text(text)
    return task
