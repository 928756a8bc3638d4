"""Environments without dependencies."""
