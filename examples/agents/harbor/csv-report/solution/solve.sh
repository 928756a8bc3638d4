#!/bin/sh
python3 - <<'PYTHON'
import csv
import json
from collections import Counter

totals = Counter()
for order in json.load(open("/app/orders.json")):
    totals[order["customer"]] += order["price"] * order["quantity"]
with open("/app/report.csv", "w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(["customer", "total"])
    writer.writerows([name, f"{total:.2f}"] for name, total in sorted(totals.items()))
PYTHON
