"""Looks into a run, one that goes on or one that has ended: report, status, doctor."""
