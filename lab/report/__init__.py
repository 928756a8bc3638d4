"""The overview, four pages of docs/results and their pictures: `python -m lab.report`.

lines of all programs ─► values ─► templates in pages/ ─► docs/results.md, docs/results/*.md
                     └─► pictures: map, parts, advice, smollm2, replay, gpu ─► *.svg
"""
