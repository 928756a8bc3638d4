"""Settings of all tests."""

import os

from hypothesis import settings

# No test is timed: what takes longer on a busy machine has not failed.
settings.register_profile("r3l", deadline=None)
settings.load_profile("r3l")

# A metric that is missing from learner/metrics/tags.py: an error here and in every process started.
UNKNOWN_METRIC = "error:unknown metric"
os.environ["PYTHONWARNINGS"] = UNKNOWN_METRIC


def pytest_configure(config: object) -> None:
    config.addinivalue_line("filterwarnings", UNKNOWN_METRIC)
