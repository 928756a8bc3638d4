"""Benchmarks of the group buffer: `python -m benchmarks.buffer`."""
