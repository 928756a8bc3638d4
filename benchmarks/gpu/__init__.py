"""The learner on a GPU: `python -m benchmarks.gpu`."""
