"""Evaluation of a model: tasks that are played several times, and what their results say."""
