"""The sections of a run's configuration (r3l.config), and how values are read and checked."""
