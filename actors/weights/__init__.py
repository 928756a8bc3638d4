"""Gets new weights for an actor: subscribe, stage, load into the running engine."""
