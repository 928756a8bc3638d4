"""Adapters of other projects' environments. Imports a project's library only when it is used."""
