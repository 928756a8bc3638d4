"""Publishes the weights: copies them during a step, and serves them next to the steps."""
