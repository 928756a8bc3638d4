"""How an actor gets new weights: subscribe, stage, load into the running engine."""
