"""Token losses against their equations written out with Python floats, one token at a time."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from r3l.algorithms import losses
from r3l.algorithms.credit import token_weights

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


def term_importance(row, t, adv, lp, old, ref):
    return -adv[row] * math.exp(lp[row][t] - old[row][t])


def term_refined(row, t, adv, lp, old, ref):
    p = math.exp(lp[row][t])
    return -adv[row] * (lp[row][t] if row % 2 else p / (p + 0.1))


def term_sft(row, t, adv, lp, old, ref):
    return -lp[row][t]


def term_k2(row, t, adv, lp, old, ref):
    return (lp[row][t] - ref[row][t]) ** 2 / 2


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
    "policy_gradient": (losses.policy_gradient, term_policy_gradient),
    "opmd": (partial(losses.policy_gradient, scale=1 / 1.5), term_opmd),
    "ppo_clip": (partial(losses.ppo_clip, clip_low=0.2, clip_high=0.28), term_ppo),
    "importance": (losses.importance, term_importance),
    "gspo": (partial(losses.gspo, clip_low=0.1, clip_high=0.2), None),
    "critique_grpo": (
        partial(losses.critique_grpo, attempts=losses.policy_gradient, gamma=0.1),
        term_refined,
    ),
    "sft": (losses.sft, term_sft),
    "k2_kl": (lambda batch: (losses.k2_kl(batch), {}), term_k2),
    "k3_kl": (lambda batch: (losses.k3_kl(batch), {}), term_k3),
}


def over_tokens(values_B, like_BT):
    """Gives every token the value of its row."""
    return values_B[:, None].expand_as(like_BT)


def token_batch(b, normalize="trajectory", **more):
    """The batch of the tensors lp, old, ref, mask and adv; the mean is over these rows."""
    lengths = b["mask"].sum(dim=1).tolist()
    fields = {
        "logprobs_BT": b["lp"],
        "old_logprobs_BT": b.get("old", b["lp"].detach()),
        "reference_BT": b.get("ref"),
        "mask_BT": b["mask"],
        "advantages_BT": over_tokens(b["adv"], b["lp"]),
        "weights_BT": over_tokens(tensor(token_weights(normalize, lengths)), b["lp"]),
        "distilled_B": b.get("distilled", torch.zeros(len(lengths), dtype=torch.bool)),
    }
    return losses.TokenBatch(**fields | more).masked()


def value(loss, b, normalize="trajectory", **more):
    batch = token_batch(b, normalize, **more)
    return batch.total(loss(batch)[0])


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
        "distilled": torch.arange(rows) % 2 == 0,
    }


@pytest.mark.parametrize("normalize", NORMALIZE)
@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_every_loss_equals_its_equation(name, normalize, batch):
    loss, term = LOSSES[name]
    lists = {key: values.tolist() for key, values in batch.items()}
    if term is None:
        want = slow_gspo(lists["mask"], lists["adv"], lists["lp"], lists["old"], normalize)
    else:
        keys = ("mask", "adv", "lp", "old", "ref")
        want = slow(term, *(lists[key] for key in keys), normalize)
    assert value(loss, batch, normalize).item() == pytest.approx(want, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(batch=batches(), data=st.data())
def test_micro_batches_add_up_to_the_batch_and_weights_multiply_rows(name, batch, data):
    loss, rows = LOSSES[name][0], len(batch["mask"])
    counts = data.draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    whole = value(loss, batch, weights_BT=over_tokens(tensor(counts), batch["lp"]))
    parts = []
    for row in data.draw(st.permutations(range(rows))):
        one = {key: values[[row]] for key, values in batch.items()}
        parts += [value(loss, one, weights_BT=torch.ones_like(one["lp"]))] * counts[row]
    assert sum(parts, tensor(0.0)).item() == pytest.approx(whole.item(), rel=1e-10, abs=1e-10)


@pytest.mark.parametrize("name", LOSSES)
@settings(max_examples=25, deadline=None)
@given(batch=batches())
def test_tokens_outside_the_mask_are_never_read_and_get_no_gradient(name, batch):
    loss, _ = LOSSES[name]
    clean = value(loss, batch)
    dirty = dict(batch)
    for key, junk in (("lp", math.nan), ("old", math.inf), ("ref", -math.inf)):
        dirty[key] = batch[key].masked_fill(~batch["mask"], junk)
    dirty["lp"].requires_grad_(True)
    got = value(loss, dirty)
    assert got.item() == clean.item()
    got.backward()
    assert (dirty["lp"].grad[~batch["mask"]] == 0).all()
    assert torch.isfinite(dirty["lp"].grad).all()


def batch_of_two():
    return {
        "lp": tensor([[-1.0, -2.0, -3.0], [-0.5, -1.0, -9.0]]),
        "old": tensor([[-1.0, -2.0, -3.0], [-1.0, -1.0, -9.0]]),
        "mask": torch.tensor([[True, True, True], [True, True, False]]),
        "adv": tensor([3.0, -1.0]),
    }


CLIP = {"clip_low": 0.2, "clip_high": 0.2}


def test_policy_gradient_literal_numbers():
    b = batch_of_two()
    # (3·(1+2+3)/3 − (0.5+1)/2) / 2 and (3·6 − 1.5)/5
    assert value(losses.policy_gradient, b).item() == pytest.approx(2.625)
    assert value(losses.policy_gradient, b, "token").item() == pytest.approx(3.3)
    opmd = partial(losses.policy_gradient, scale=0.5)
    assert value(opmd, b).item() == pytest.approx(2.625 / 2)


def test_sft_literal_numbers():
    assert value(losses.sft, batch_of_two(), "token").item() == pytest.approx(7.5 / 5)


def test_ppo_clip_literal_numbers():
    b, loss = batch_of_two(), partial(losses.ppo_clip, **CLIP)
    up = math.exp(0.5)  # clipping never helps a negative advantage upwards
    assert value(loss, b).item() == pytest.approx((-3 + (up + 1) / 2) / 2)
    assert value(loss, b | {"adv": -b["adv"]}).item() == pytest.approx((3 - (1.2 + 1) / 2) / 2)


def test_gspo_literal_numbers():
    b, loss = batch_of_two(), partial(losses.gspo, clip_low=3e-4, clip_high=4e-4)
    s = math.exp(0.25)
    assert value(loss, b).item() == pytest.approx((-3 + s) / 2)
    assert value(loss, b | {"adv": -b["adv"]}).item() == pytest.approx((3 - 1.0004) / 2)


def test_refined_literal_numbers():
    lp = tensor([[math.log(0.1), math.log(0.9)]]).requires_grad_(True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    b = {"lp": lp, "mask": mask, "adv": tensor([2.0]), "distilled": torch.tensor([True])}
    got = value(LOSSES["critique_grpo"][0], b)
    assert got.item() == pytest.approx(-2 * (0.5 + 0.9) / 2)
    got.backward()  # d/d log π of π/(π + γ) is πγ/(π + γ)²
    assert lp.grad.tolist() == [pytest.approx([-0.1 * 0.1 / 0.2**2, -0.9 * 0.1 / 1.0**2])]


def test_kl_literal_numbers():
    b = {"lp": tensor([[-1.0, -1.0]]), "ref": tensor([[-1.0, -1.0 + math.log(2)]])}
    b |= {"mask": torch.ones(1, 2, dtype=torch.bool), "adv": tensor([1.0])}
    assert value(LOSSES["k3_kl"][0], b).item() == pytest.approx((1 - math.log(2)) / 2)
    assert value(LOSSES["k2_kl"][0], b).item() == pytest.approx(math.log(2) ** 2 / 4)


def clip_fraction(loss, b, normalize="trajectory"):
    batch = token_batch(b, normalize)
    return batch.total(loss(batch)[1]["clip_fraction"]).item()


def test_clip_fraction_counts_tokens_the_clip_silences():
    b = batch_of_two()
    ppo, gspo = partial(losses.ppo_clip, **CLIP), partial(losses.gspo, **CLIP)
    assert clip_fraction(ppo, b) == 0.0
    b["adv"] = -b["adv"]
    assert clip_fraction(ppo, b) == pytest.approx(0.25)
    assert clip_fraction(gspo, b) == pytest.approx(0.5)
    assert clip_fraction(ppo, b, "token") == pytest.approx(1 / 5)
    b["distilled"] = torch.tensor([False, True])
    refined = partial(losses.critique_grpo, attempts=ppo, gamma=0.1)
    assert clip_fraction(refined, b) == 0.0


@pytest.mark.parametrize("name", ["ppo_clip", "gspo"])
@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_clipped_tokens_have_no_gradient(name, batch):
    lp = batch["lp"].clone().requires_grad_(True)
    b, loss = batch | {"lp": lp}, LOSSES[name][0]
    value(loss, b, "token").backward()
    silent = (lp.grad == 0) & batch["mask"] & (batch["adv"] != 0)[:, None]
    share = silent.sum().item() / max(batch["mask"].sum(), 1)
    assert clip_fraction(loss, b, "token") == pytest.approx(share)


def test_a_policy_far_from_the_sampler_gives_finite_losses():
    for name in ("ppo_clip", "gspo", "k2_kl", "k3_kl", "critique_grpo"):
        lp = torch.zeros(2, 1).requires_grad_(True)
        far = torch.full((2, 1), -1e4)
        b = {"lp": lp, "old": far, "ref": far, "mask": torch.ones(2, 1, dtype=torch.bool)}
        got = value(LOSSES[name][0], b | {"adv": torch.tensor([0.0, -1.0])})
        assert torch.isfinite(got)
        got.backward()
        assert torch.isfinite(lp.grad).all()


def test_half_precision_is_widened_before_it_is_summed():
    lp = torch.full((1, 4096), -1.0, dtype=torch.bfloat16)
    b = {"lp": lp, "mask": torch.ones(1, 4096, dtype=torch.bool), "adv": torch.ones(1)}
    got = value(losses.sft, b, weights_BT=torch.full((1, 4096), 1 / 4096))
    assert got.dtype == torch.float32 and got.item() == 1.0
    assert token_batch(b).logprobs_BT.dtype == torch.float32


@pytest.mark.parametrize("name", LOSSES)
def test_a_batch_with_nothing_to_train_has_loss_zero(name):
    lp = tensor([[-1.0, -2.0]]).requires_grad_(True)
    mask = torch.zeros(1, 2, dtype=torch.bool)
    got = value(LOSSES[name][0], {"lp": lp, "ref": lp.detach(), "mask": mask, "adv": tensor([1.0])})
    got.backward()
    assert got.item() == 0.0 and (lp.grad == 0).all()


def test_mismatched_shapes_and_a_missing_reference_are_named():
    b = batch_of_two()
    with pytest.raises(ValueError, match=r"\(2, 3\) and \(2, 2\)"):
        token_batch(b | {"mask": b["mask"][:, :2]})
    for name in ("advantages_BT", "weights_BT"):
        with pytest.raises(ValueError, match=rf"{name} has shape \(2, 1\); the mask has \(2, 3\)"):
            token_batch(b, **{name: torch.ones(2, 1)})
    with pytest.raises(ValueError, match="reference"):
        losses.k3_kl(token_batch(b))


# -- losses of rows, and measurements --------------------------------------------------------


def test_each_loss_reads_its_own_rows():
    batch = token_batch(batch_of_two(), losses=("policy", "sft"))
    assert batch.of("policy").mask_BT.tolist() == [[True, True, True], [False] * 3]
    assert batch.of("sft").mask_BT.tolist() == [[False] * 3, [True, True, False]]
    assert not batch.of("distillation").mask_BT.any()
    unnamed = token_batch(batch_of_two())
    assert unnamed.of("policy") is unnamed and not unnamed.of("sft").mask_BT.any()


def test_the_loss_of_supervised_rows_in_literal_numbers():
    batch = token_batch(batch_of_two(), losses=("policy", "sft"))
    parts = losses.imitation_loss(batch)
    assert parts["sft"].item() == pytest.approx((0.5 + 1.0) / 2 / 2)
    assert batch.measured == {"loss_sft": parts["sft"].item()}


@settings(max_examples=40, deadline=None)
@given(batch=batches(), data=st.data())
def test_advantages_and_weights_of_single_tokens_count(batch, data):
    shape = tuple(batch["mask"].shape)
    numbers = st.lists(
        st.integers(-3, 3), min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]
    )
    advantages, weights = (tensor(data.draw(numbers)).reshape(shape) for _ in range(2))
    got = value(losses.policy_gradient, batch, advantages_BT=advantages, weights_BT=weights)
    want = -sum(
        weights[i, t].item() * advantages[i, t].item() * batch["lp"][i, t].item()
        for i in range(shape[0])
        for t in range(shape[1])
        if batch["mask"][i, t]
    )
    assert got.item() == pytest.approx(want, rel=1e-10, abs=1e-10)


def test_what_is_measured_adds_up_over_the_micro_batches_of_a_step():
    batch = token_batch(batch_of_two())
    batch.measure("found", torch.tensor(1.5))
    batch.of("policy").masked().measure("found", 2)  # a part of the same micro-batch
    assert batch.measured == {"found": 3.5}
