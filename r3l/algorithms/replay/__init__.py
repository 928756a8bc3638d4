"""Algorithms that learn from stored attempts as well, and their rules of recall."""
