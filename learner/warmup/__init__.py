"""The supervised warm-up: teaches a policy an environment's language from demonstrations."""
