"""Finds out whether an engine can follow a grammar, before the engine gets it."""
