"""Training from finished stores: rank 0 without actors, and the trust meter."""
