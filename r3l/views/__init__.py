"""Attempts as readers see them, and as rows of a table."""
