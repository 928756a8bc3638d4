"""The actor: explores leased tasks on one vLLM engine and puts every result into the buffer."""
