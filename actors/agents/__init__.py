"""Plays attempts with agents: the process, its tape, its world and its record."""
