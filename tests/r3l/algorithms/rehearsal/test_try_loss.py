"""What is tried of a loss, and when."""

import warnings

import numpy as np
import pytest
import torch

from r3l.algorithms.algorithm import Algorithm
from r3l.algorithms.published.grpo import GRPO
from r3l.algorithms.r3l import R3L
from r3l.algorithms.rehearsal.try_loss import changes_the_loss, token_batch, try_loss
from r3l.algorithms.rows import Row
from r3l.errors import UserError


def row(length=4, advantage=1.0, **more):
    ids = np.arange(length, dtype=np.int32)
    filled = np.full(length, advantage, np.float32)
    return Row(
        ids, ids > 0, np.full(length, -1.0, np.float32), filled, np.full(length, 0.5), **more
    )


class Own(GRPO):
    def clipped_ratio(self, batch):
        return super().clipped_ratio(batch)


class Explores(R3L):
    async def explore(self, x):
        return None


def test_only_classes_with_a_loss_of_their_own_are_tried():
    assert changes_the_loss(Own)
    assert not any(map(changes_the_loss, (Algorithm, GRPO, R3L, Explores)))


def test_rows_are_padded_and_no_token_is_more_likely_than_it_can_be():
    batch = token_batch([row(3), row(5, loss="sft"), row(4, distilled=True)])
    assert batch.mask_BT.sum(1).tolist() == [2, 4, 3] and batch.mask_BT.shape == (3, 5)
    assert batch.losses == ("policy", "sft", "policy") and batch.reference_BT is None
    assert batch.distilled_B.tolist() == [False, False, True]
    logprobs = batch.logprobs_BT.detach()
    assert (logprobs <= 0).all() and (logprobs[batch.mask_BT] != -1.0).all()
    both = token_batch([row(3, reference=np.full(3, -2.0, np.float32)), row(5)])
    assert both.reference_BT.shape == (2, 5) and both.reference_BT[0, 2] == -2.0


def test_rows_of_decoded_groups_are_read_only_and_draw_no_warning() -> None:
    decoded = row()
    for name in ("token_ids", "mask", "old_logprobs", "advantages", "weights"):
        getattr(decoded, name).setflags(write=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert token_batch([decoded]).mask_BT.sum() == 3


def test_a_loss_that_adds_up_passes_whatever_its_rows():
    for algorithm in (
        GRPO(kl_coef=0),
        R3L(),
        Algorithm(),
        GRPO(kl_coef=0, ratio_correction="token_mask"),
    ):
        try_loss(algorithm, [row(3 + i % 5, (-1.0) ** i) for i in range(40)])


def test_a_mean_over_the_micro_batch_is_told():
    class Mean(Algorithm):
        def loss(self, batch):
            return {"policy": (batch.logprobs_BT * batch.mask_BT).sum() / batch.mask_BT.sum()}

    with pytest.raises(UserError, match=r"the losses of single rows add up to -.* add terms"):
        try_loss(Mean(), [row(), row()])


class Keeps(Algorithm):
    """An algorithm whose loss reads what `keep` left in the object."""

    _kept: str = ""

    def keep(self, what):
        self._kept = what
        return self

    def loss(self, batch):
        policy = super().loss(batch)["policy"]
        return {"policy": policy * (2 if self._kept == "a factor" else 1)} | (
            {"more": policy} if self._kept == "a part" else {}
        )


@pytest.mark.parametrize(
    ("kept", "said"),
    [
        ("a factor", r"its part 'policy' is (\S+) instead of \S+; put what it reads into the rows"),
        ("a part", r"its parts are \['policy'\] instead of \['more', 'policy'\]; put what it"),
    ],
)
def test_what_another_rank_does_not_have_is_told(kept, said):
    try_loss(Keeps(), [row(), row()])
    with pytest.raises(UserError, match=f"^on ranks other than 0, which never call `rows`, {said}"):
        try_loss(Keeps().keep(kept), [row(), row()])


def test_rows_of_which_one_alone_has_no_gradient_pass():
    class OfPairs(Algorithm):
        def loss(self, batch):
            return {"policy": super().loss(batch)["policy"], "none": torch.zeros(())}

    try_loss(OfPairs(), [row(), row(advantage=0.0)])
