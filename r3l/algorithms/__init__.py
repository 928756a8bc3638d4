"""R³L and the baselines: settings, advantages, masks and token losses; one file per algorithm."""
