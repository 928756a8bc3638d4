"""Shows a run to the user while it trains."""
