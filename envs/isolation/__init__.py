"""Environments in worker processes: a crash or a hang costs only their own attempts."""
