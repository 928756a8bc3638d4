"""Inspects a run while it trains or after its end: status, doctor, report."""
