"""Supervised warm start: teach a policy an environment's language from demonstrations."""
