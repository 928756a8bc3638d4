"""The actor: one vLLM engine that explores leased tasks and puts every result."""
