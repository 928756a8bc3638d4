"""The experiments of docs/results.md: `python -m lab.results`.

cells ─► warm policies ─► experiments ─► runs, a process each ─► lab/lines/*.jsonl ─► pages
"""
