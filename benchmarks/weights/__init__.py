"""Cost of a weight update: `python -m benchmarks.weights`."""
