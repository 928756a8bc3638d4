"""One optimizer step: batches, the model, the DeepSpeed engine."""
