"""Agents that somebody else wrote, as an environment: their tasks, processes and graders."""
