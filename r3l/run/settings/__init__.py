"""The sections of a run's configuration (r3l.run.config)."""
