"""Where reflect-then-retry pays, over all worlds and models: `python -m lab.where_it_pays`.

lines ─► rows: R³L over each partner, by world ─┬► two pictures
                                                └► page.md ─► the appendix
"""
