"""Places the processes of a run on machines, and checks that they fit."""
