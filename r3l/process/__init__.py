"""Shared by all processes of a run: file modes, memory settings, notices to the user."""
