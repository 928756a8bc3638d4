"""Numbers that are added over two ranks, which need not have the same names."""

import json
import os
from pathlib import Path

import pytest
import torch

from learner.step import collectives
from learner.step.process_group import join_process_group
from tests.learner.ranks import on_two_ranks

CPU = torch.device("cpu")


def add(out: Path) -> None:
    """Writes OUT/<rank>.json: what a rank gets."""
    join_process_group(60)
    rank = int(os.environ["RANK"])
    own = {"both": 1.5, "zweite ö": 2.0} if rank else {"both": 0.25, "a": 1.0}
    part, none = torch.tensor([rank, 7], dtype=torch.int32), torch.zeros(0)
    collectives.add_in_place(part, CPU)
    collectives.add_in_place(none, CPU)
    seen = {
        "added": collectives.add(own, CPU),
        "none": collectives.add({}, CPU),
        "any": [collectives.any_of(rank == 1, CPU), collectives.any_of(False, CPU)],
        "part": part.tolist(),
    }
    (out / f"{rank}.json").write_text(json.dumps(seen))


@pytest.mark.system
def test_every_rank_gets_the_sums_of_all_names(tmp_path: Path) -> None:
    on_two_ranks(add, tmp_path)
    for rank in range(2):
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == {
            "added": {"a": 1.0, "both": 1.75, "zweite ö": 2.0},
            "none": {},
            "any": [True, False],
            "part": [1, 14],
        }
