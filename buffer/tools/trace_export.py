"""Writes the attempts of a store as session traces, with a data card.

store ─► groups ─► sessions/g0000000042-1.jsonl, one for each attempt
              └──► README.md, the data card
"""

import json
from collections import Counter
from pathlib import Path

from buffer.storage.store import Store
from buffer.tools import store_reads
from r3l.errors import UserError
from r3l.files.new_folder import new_folder
from r3l.run.cards import CARD, data_card
from r3l.run.files.run_folder import RunFolder
from r3l.text import encodable
from r3l.views.session_trace import sessions_of

SESSIONS = "sessions"


def write_traces(store: Store, folder: Path, out: Path) -> str:
    """Writes a new folder. Returns lines that say what it contains and what was left out. `folder`:
    the store's. Raises UserError if the store has no attempt, or as `new_folder` does."""
    counts, left, rewards = Counter[str](), Counter[str](), list[float]()
    with new_folder(out, "--out") as building:
        (building / SESSIONS).mkdir()
        for row in store_reads.rows(store):
            for name, lines in sessions_of(store_reads.group(store, row["group"]), left):
                text = "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
                # A policy may write half a surrogate pair as \ud800 into its JSON.
                file = building / SESSIONS / f"{name}.jsonl"
                file.write_text(encodable(text), encoding="utf-8")
                header = lines[0]
                rewards.append(float(header["reward"]))
                counts.update(["sessions", f"of env {header['task']['env']}"])
                counts["retries"] += "of" in header
                counts["of evaluations"] += header["purpose"] == "eval"
        if not rewards:
            why = "".join(f"; left out {n}: {cause}" for cause, n in sorted(left.items()))
            raise UserError(f"{folder}: holds no attempt, so there is nothing to export{why}")
        counts.update({f"left out: {cause}": n for cause, n in sorted(left.items())})
        run = RunFolder(folder.parent)
        card = data_card(run if run.store == folder and run.exists else None, counts, rewards)
        (building / CARD).write_text(card, encoding="utf-8")
    made = f"{counts['sessions']} sessions in {out / SESSIONS}, and {out / CARD}"
    return "\n".join([made, *(f"left out {n}: {cause}" for cause, n in sorted(left.items()))])
