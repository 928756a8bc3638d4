"""Computes group, buffer and drift metrics, lists their tags, and passes them to loggers."""
