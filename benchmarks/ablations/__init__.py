"""Training runs compared at equal sampled tokens: `python -m benchmarks.ablations`."""
