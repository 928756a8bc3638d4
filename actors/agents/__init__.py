"""Plays attempts with agents: runs the process, keeps its tape and world, makes the record."""
