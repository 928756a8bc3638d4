"""The supervised warm start: teaches a policy an environment's language from demonstrations."""
