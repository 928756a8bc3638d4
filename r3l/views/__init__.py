"""Attempts as text and as rows of a table."""
