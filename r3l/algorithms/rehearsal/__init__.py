"""Tries a user's algorithm before a run: without a model, without a GPU, in about a second."""
