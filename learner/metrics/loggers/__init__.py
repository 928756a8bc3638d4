"""Writes metrics to TensorBoard and other services; see `learner.metrics.loggers.logger.Logger`."""
