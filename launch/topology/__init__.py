"""Places a run's processes on machines, and checks that they fit."""
