"""Where each process of a run goes, and whether it fits there."""
