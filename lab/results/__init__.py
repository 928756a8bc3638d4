"""The experiments of docs/results.md: `python -m lab.results`.

cells ─► warm policies ─► experiments ─► runs, a process each ─► docs/results/*.jsonl ─► page
"""
