"""Environments that need no other package, and the tiny policy shipped for them."""
