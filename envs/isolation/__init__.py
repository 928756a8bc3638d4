"""Environments in worker processes: if a worker crashes or hangs, only its attempts are lost."""
