"""Works on finished runs: trains from their stores, replays their steps, rebuilds their weights,
regrades their attempts."""
