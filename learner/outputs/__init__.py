"""What a run leaves beside its checkpoints: the best model, uploads."""
