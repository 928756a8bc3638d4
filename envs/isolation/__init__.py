"""Environments in worker processes, so that one that crashes or hangs costs only its attempts."""
