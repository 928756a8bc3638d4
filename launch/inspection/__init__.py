"""Inspects a run while it is training or after it has ended: status, doctor, report."""
