"""Environments that need nothing else, and the tiny policy that ships for them."""
