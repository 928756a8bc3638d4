"""Shows a run to the user while it is training."""
