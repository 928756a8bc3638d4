"""What a run leaves beside its checkpoints: the best model, what the user's own
command makes of them."""
