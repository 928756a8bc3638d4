"""Refuses an impossible run before any of its processes is started. Contradictory settings are
refused earlier, when they are read (r3l.run.config, r3l.run.settings)."""
