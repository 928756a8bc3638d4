"""What all processes of a run share: file modes, memory settings, notices to the user."""
