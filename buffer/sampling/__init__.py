"""Chooses the groups of a batch, the next task, and the stored attempts to recall."""
