"""Files on disk: written whole or not at all, and everything that a run's folder holds."""
