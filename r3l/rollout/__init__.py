"""Samples one group: attempts, reflections and retries. Needs only a policy that samples tokens,
and an environment."""
