"""How one group is made: attempts, reflections, retries, written against two interfaces (a policy
that samples tokens, an environment)."""
