"""ScienceWorld: elementary science experiments in text (AI2, Apache-2.0)."""
