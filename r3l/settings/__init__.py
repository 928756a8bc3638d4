"""The sections of a run's configuration (r3l.config), and how their values are read and refused."""
