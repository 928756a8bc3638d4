"""Shared by all processes of a run: file modes, memory settings, endpoints, command lines."""
