"""Draws groups, trains on them, commits them and publishes the weights."""
