"""What every process of a run has in common: file modes, memory, notices to the user."""
