"""Ends with 0 if /app/report.csv is right, and with 1 if it is not."""

import csv
import sys
from pathlib import Path

WANTED = [["customer", "total"], ["Adler", "32.00"], ["Meyer, Ltd", "100.00"], ["Okafor", "28.00"]]

try:
    text = Path("/app/report.csv").read_text()
except OSError as error:
    sys.exit(f"{error}")
found = list(csv.reader(text.splitlines()))
print("found", found)
sys.exit(found != WANTED)
