"""Attempts as text."""
