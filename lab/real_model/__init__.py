"""A real language model, SmolLM2, on two cores: `python -m lab.real_model`.

warm-ups (doses of demonstrated reflections) ─► frozen probe: guidance gain ─► training ─► page
"""
