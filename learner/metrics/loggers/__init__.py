"""Where metrics go: TensorBoard and others, each a `learner.metrics.loggers.logger.Logger`."""
