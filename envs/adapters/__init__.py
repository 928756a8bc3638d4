"""Adapters of other projects' environments; each library is imported when it is used."""
