"""Adapters to other projects' environments. Each imports the project's library only when used."""
