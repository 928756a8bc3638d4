"""Samples one group: attempts, reflections and retries. It needs only two interfaces: a policy that
samples tokens, and an environment."""
