"""Settings of the tests of lab: those of all tests."""

from tests.conftest import process_as_before, pytest_collection_modifyitems, pytest_configure

__all__ = ["process_as_before", "pytest_collection_modifyitems", "pytest_configure"]
