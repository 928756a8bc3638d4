"""Compares /app/errors.json with the log. The reward is the share of services that are right."""

import json
from collections import Counter
from pathlib import Path

lines = Path("/app/server.log").read_text().splitlines()
wanted = {"mail": 3, "web": 1}
unchanged = Counter(line.split()[1] for line in lines) == {"INFO": 3, "ERROR": 4, "WARNING": 1}
try:
    found = json.loads(Path("/app/errors.json").read_text())
except (OSError, ValueError) as error:
    print(error)
    found = None
if not isinstance(found, dict):
    found = {}
right = sum(found.get(name) == count for name, count in wanted.items())
extra = len(found.keys() - wanted.keys())
share = max(0, right - extra) / len(wanted) if unchanged else 0
rewards = {"reward": share, "exact": int(unchanged and found == wanted)}
print(rewards)
Path("/logs/verifier/reward.json").write_text(json.dumps(rewards))
