"""Publishes the weights: copies them in a step, serves them beside it."""
