"""Token losses against their equations written out with Python floats, one token at a time."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from r3l.algorithms import losses

NORMALIZE = ["trajectory", "token"]


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


# -- the equations, slowly ------------------------------------------------------------------


def term_policy_gradient(row, t, adv, lp, old, ref):
    return -adv[row] * lp[row][t]


def term_opmd(row, t, adv, lp, old, ref):
    return -adv[row] * lp[row][t] / (1 + 0.5)


def term_ppo(row, t, adv, lp, old, ref):
    ratio = math.exp(lp[row][t] - old[row][t])
    return -min(ratio * adv[row], min(max(ratio, 0.8), 1.28) * adv[row])


def term_shaped(row, t, adv, lp, old, ref):
    p = math.exp(lp[row][t])
    return -adv[row] * p / (p + 0.1)


def term_sft(row, t, adv, lp, old, ref):
    return -lp[row][t]


def term_k3(row, t, adv, lp, old, ref):
    return math.exp(ref[row][t] - lp[row][t]) - (ref[row][t] - lp[row][t]) - 1


def slow(term, mask, adv, lp, old, ref, normalize):
    rows = []
    for row in range(len(mask)):
        kept = [t for t in range(len(mask[row])) if mask[row][t]]
        rows.append([term(row, t, adv, lp, old, ref) for t in kept])
    if normalize == "token":
        return sum(map(sum, rows)) / max(sum(map(len, rows)), 1)
    return sum(sum(r) / max(len(r), 1) for r in rows) / len(rows)


def slow_gspo(mask, adv, lp, old, normalize):
    total, count = 0.0, 0
    for row in range(len(mask)):
        kept = [t for t in range(len(mask[row])) if mask[row][t]]
        if not kept:
            continue
        s = math.exp(sum(lp[row][t] - old[row][t] for t in kept) / len(kept))
        value = -min(s * adv[row], min(max(s, 1 - 0.1), 1 + 0.2) * adv[row])
        total += value * (len(kept) if normalize == "token" else 1)
        count += len(kept)
    return total / (max(count, 1) if normalize == "token" else len(mask))


LOSSES = {
    "policy_gradient": (
        lambda b, **k: losses.policy_gradient(b["lp"], b["mask"], b["adv"], **k),
        term_policy_gradient,
    ),
    "opmd": (lambda b, **k: losses.opmd(b["lp"], b["mask"], b["adv"], tau=0.5, **k), term_opmd),
    "ppo_clip": (
        lambda b, **k: losses.ppo_clip(b["lp"], b["old"], b["mask"], b["adv"], clip_high=0.28, **k),
        term_ppo,
    ),
    "shaped": (lambda b, **k: losses.shaped(b["lp"], b["mask"], b["adv"], **k), term_shaped),
    "sft": (lambda b, **k: losses.sft(b["lp"], b["mask"], **k), term_sft),
    "k3_kl": (lambda b, **k: losses.k3_kl(b["lp"], b["ref"], b["mask"], **k), term_k3),
    "gspo": (
        lambda b, **k: losses.gspo(
            b["lp"], b["old"], b["mask"], b["adv"], clip_low=0.1, clip_high=0.2, **k
        ),
        None,
    ),
}


@st.composite
def batches(draw):
    rows, length = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    logprob, weight = st.floats(-6, -0.01), st.integers(-30, 30).map(lambda n: n / 10)
    matrix = st.lists(
        st.lists(logprob, min_size=length, max_size=length), min_size=rows, max_size=rows
    )
    mask = draw(
        st.lists(
            st.lists(st.booleans(), min_size=length, max_size=length),
            min_size=rows,
            max_size=rows,
        )
    )
    return {
        "lp": tensor(draw(matrix)),
        "old": tensor(draw(matrix)),
        "ref": tensor(draw(matrix)),
        "mask": torch.tensor(mask),
        "adv": tensor(draw(st.lists(weight, min_size=rows, max_size=rows))),
    }


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_every_loss_is_its_equation(name, normalize, batch):
    fast, term = LOSSES[name]
    lists = {key: value.tolist() for key, value in batch.items()}
    if term is None:
        want = slow_gspo(lists["mask"], lists["adv"], lists["lp"], lists["old"], normalize)
    else:
        keys = ("mask", "adv", "lp", "old", "ref")
        want = slow(term, *(lists[key] for key in keys), normalize)
    assert fast(batch, normalize=normalize).item() == pytest.approx(want, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(batch=batches(), data=st.data())
def test_micro_batches_add_up_to_the_batch(name, normalize, batch, data):
    fast, _ = LOSSES[name]
    rows, tokens = len(batch["mask"]), int(batch["mask"].sum())
    denominator = float(rows if normalize == "trajectory" else max(tokens, 1))
    order = data.draw(st.permutations(range(rows)))
    cuts = sorted({0, rows, *data.draw(st.lists(st.integers(0, rows), max_size=3))})
    parts = [
        fast(
            {key: value[list(order[a:b])] for key, value in batch.items()},
            normalize=normalize,
            denominator=denominator,
        )
        for a, b in pairwise(cuts)
    ]
    whole = fast(batch, normalize=normalize)
    assert sum(parts).item() == pytest.approx(whole.item(), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(batch=batches())
def test_tokens_outside_the_mask_are_never_read_and_get_no_gradient(name, normalize, batch):
    fast, _ = LOSSES[name]
    clean = fast(batch, normalize=normalize)
    dirty = dict(batch)
    for key, junk in (("lp", math.nan), ("old", math.inf), ("ref", -math.inf)):
        dirty[key] = batch[key].masked_fill(~batch["mask"], junk)
    dirty["lp"].requires_grad_(True)
    value = fast(dirty, normalize=normalize)
    assert value.item() == clean.item()
    value.backward()
    assert (dirty["lp"].grad[~batch["mask"]] == 0).all()
    assert torch.isfinite(dirty["lp"].grad).all()


def batch_of_two():
    return {
        "lp": tensor([[-1.0, -2.0, -3.0], [-0.5, -1.0, -9.0]]),
        "old": tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, -9.0]]),
        "mask": torch.tensor([[True, True, True], [True, True, False]]),
        "adv": tensor([3.0, -1.0]),
    }


def test_policy_gradient_literal_numbers():
    b = batch_of_two()
    # (3·(1+2+3)/3 − (0.5+1)/2) / 2 and (3·6 − 1.5)/5
    assert losses.policy_gradient(b["lp"], b["mask"], b["adv"]).item() == pytest.approx(2.625)
    token = losses.policy_gradient(b["lp"], b["mask"], b["adv"], normalize="token")
    assert token.item() == pytest.approx(3.3)
    assert losses.opmd(b["lp"], b["mask"], b["adv"]).item() == pytest.approx(2.625 / 2)


def test_sft_literal_numbers():
    b = batch_of_two()
    assert losses.sft(b["lp"], b["mask"]).item() == pytest.approx(7.5 / 5)


def test_ppo_clip_literal_numbers():
    b = batch_of_two()
    up = math.exp(0.5)  # clipping never helps a negative advantage upwards
    got = losses.ppo_clip(b["lp"], b["old"], b["mask"], b["adv"])
    assert got.item() == pytest.approx((-3 + (up + 1) / 2) / 2)
    got = losses.ppo_clip(b["lp"], b["old"], b["mask"], -b["adv"])
    assert got.item() == pytest.approx((3 - (1.2 + 1) / 2) / 2)


def test_gspo_literal_numbers():
    b = batch_of_two()
    s = math.exp(0.25)
    assert losses.gspo(b["lp"], b["old"], b["mask"], b["adv"]).item() == pytest.approx((-3 + s) / 2)
    got = losses.gspo(b["lp"], b["old"], b["mask"], -b["adv"])
    assert got.item() == pytest.approx((3 - 1.0004) / 2)


def test_shaped_literal_numbers():
    lp = tensor([[math.log(0.1), math.log(0.9)]]).requires_grad_(True)
    got = losses.shaped(lp, torch.ones(1, 2, dtype=torch.bool), tensor([2.0]))
    assert got.item() == pytest.approx(-2 * (0.5 + 0.9) / 2)
    got.backward()  # d/d log π of π/(π + γ) is πγ/(π + γ)²
    assert lp.grad.tolist() == [pytest.approx([-0.1 * 0.1 / 0.2**2, -0.9 * 0.1 / 1.0**2])]


def test_k3_literal_numbers():
    lp, ref = tensor([[-1.0, -1.0]]), tensor([[-1.0, -1.0 + math.log(2)]])
    got = losses.k3_kl(lp, ref, torch.ones(1, 2, dtype=torch.bool))
    assert got.item() == pytest.approx((1 - math.log(2)) / 2)


def test_clip_fraction_counts_tokens_the_clip_silences():
    b = batch_of_two()
    args = (b["lp"], b["old"], b["mask"])
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    assert losses.clip_fraction(*args, b["adv"], **clip).item() == 0.0
    assert losses.clip_fraction(*args, -b["adv"], **clip).item() == pytest.approx(0.25)
    whole = losses.clip_fraction(*args, -b["adv"], sequence=True, **clip)
    assert whole.item() == pytest.approx(0.5)
    token = losses.clip_fraction(*args, -b["adv"], normalize="token", **clip)
    assert token.item() == pytest.approx(1 / 5)


@pytest.mark.parametrize("sequence", [False, True])
@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_clipped_tokens_are_those_without_gradient(sequence, batch):
    lp = batch["lp"].clone().requires_grad_(True)
    args = (lp, batch["old"], batch["mask"], batch["adv"])
    clip = {"clip_low": 0.2, "clip_high": 0.3}
    (losses.gspo if sequence else losses.ppo_clip)(*args, normalize="token", **clip).backward()
    silent = (lp.grad == 0) & batch["mask"] & (batch["adv"] != 0)[:, None]
    fraction = losses.clip_fraction(*args, sequence=sequence, normalize="token", **clip)
    assert fraction.item() == pytest.approx(silent.sum().item() / max(batch["mask"].sum(), 1))


def test_a_policy_far_from_the_sampler_gives_finite_losses():
    lp = torch.zeros(2, 1).requires_grad_(True)
    old, mask = torch.full((2, 1), -1e4), torch.ones(2, 1, dtype=torch.bool)
    adv = torch.tensor([0.0, -1.0])
    for value in (
        losses.ppo_clip(lp, old, mask, adv),
        losses.gspo(lp, old, mask, adv),
        losses.k3_kl(old, lp, mask),
    ):
        assert torch.isfinite(value)
        value.backward()
        assert torch.isfinite(lp.grad).all()


def test_half_precision_is_lifted_before_it_is_summed():
    lp = torch.full((1, 4096), -1.0, dtype=torch.bfloat16)
    got = losses.sft(lp, torch.ones(1, 4096, dtype=torch.bool))
    assert got.dtype == torch.float32 and got.item() == 1.0


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("normalize", NORMALIZE)
def test_a_batch_with_nothing_to_train_has_loss_zero(name, normalize):
    lp = tensor([[-1.0, -2.0]]).requires_grad_(True)
    batch = {
        "lp": lp,
        "old": lp.detach(),
        "ref": lp.detach(),
        "mask": torch.zeros(1, 2, dtype=torch.bool),
        "adv": tensor([1.0]),
    }
    value = LOSSES[name][0](batch, normalize=normalize)
    value.backward()
    assert value.item() == 0.0 and (lp.grad == 0).all()


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(batch=batches(), data=st.data())
def test_a_row_of_weight_k_is_k_rows_and_weights_of_one_change_no_bit(name, normalize, batch, data):
    fast, rows = LOSSES[name][0], len(batch["mask"])
    counts = torch.tensor(
        data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), dtype=torch.int64
    )
    repeated = {key: value.repeat_interleave(counts, 0) for key, value in batch.items()}
    got = fast(batch, normalize=normalize, denominator=7.0, weights_B=counts.double())
    want = fast(repeated, normalize=normalize, denominator=7.0)
    assert got.item() == pytest.approx(want.item(), rel=1e-10, abs=1e-10)
    ones = torch.ones(rows, dtype=torch.float64)
    assert fast(batch, normalize=normalize, weights_B=ones).equal(fast(batch, normalize=normalize))


def test_bad_arguments_are_named():
    b = batch_of_two()
    lp, mask, adv = b["lp"], b["mask"], b["adv"]
    with pytest.raises(ValueError, match=r"mask is torch\.float64"):
        losses.sft(lp, mask.double())
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 2\)"):
        losses.sft(lp, mask[:, :2])
    with pytest.raises(ValueError, match=r"advantages have shape \(1,\) for 2 rows"):
        losses.policy_gradient(lp, mask, adv[:1])
    with pytest.raises(ValueError, match=r"weights have shape \(3,\) for 2 rows"):
        losses.sft(lp, mask, weights_B=torch.ones(3))
    with pytest.raises(ValueError, match="normalize is 'batch'"):
        losses.sft(lp, mask, normalize="batch")  # type: ignore[arg-type]
    for denominator in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match="denominator"):
            losses.sft(lp, mask, denominator=denominator)
    with pytest.raises(ValueError, match="gamma"):
        losses.shaped(lp, mask, adv, gamma=0.0)
    with pytest.raises(ValueError, match="tau"):
        losses.opmd(lp, mask, adv, tau=-1.0)
    with pytest.raises(ValueError, match="clip_low"):
        losses.ppo_clip(lp, lp, mask, adv, clip_low=1.5)
