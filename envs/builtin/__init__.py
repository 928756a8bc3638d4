"""Environments without dependencies, and the tiny policy shipped for them."""
