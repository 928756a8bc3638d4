"""Attention over a forest: losses and gradients are those of separate sequences."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from r3l.algorithms import registry
from r3l.algorithms.losses import TokenBatch
from r3l.algorithms.rows import IMITATION, POLICY
from r3l.errors import UserError
from r3l.training import attention
from r3l.training.micro_batch import collate, micro_batches
from r3l.training.model import PolicyModule
from tests.r3l.training.fakes import families, made_row

SIZES = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "initializer_range": 0.3,
}
CPU = torch.device("cpu")


def qwen2(**more):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **more}))


@st.composite
def groups(draw):
    """Rows with masks, advantages and roles of their own, whatever they share."""
    made = []
    for ids in draw(families()):
        ids = np.concatenate([ids[:1], ids])
        mask = np.array(draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))))
        mask[0] = False
        old = np.where(mask, draw(st.floats(-4, -0.5)), 0.0).astype(np.float32)
        advantage, weight = draw(st.floats(-2, 2, width=32)), draw(st.floats(0.01, 0.1))
        more = {
            "loss": draw(st.sampled_from([POLICY, IMITATION])),
            "distilled": draw(st.booleans()),
            "temperature": draw(st.sampled_from([1.0, 0.7, 1.3])),
        }
        made.append(made_row(ids, mask, old, advantage, weight, **more))
    return made


def separate_logprobs(lm, row):
    """log π of every token of one row at its temperature, by the model as it is: (L)."""
    ids = torch.as_tensor(row.token_ids, dtype=torch.long)[None]
    full = (lm(input_ids=ids).logits[0] / row.temperature).log_softmax(-1)
    return torch.cat([torch.zeros(1), full[:-1].gather(1, ids[0, 1:, None])[:, 0]])


def objective(algorithm, micro, logprobs_BT):
    """The learner's loss over some rows."""
    batch = TokenBatch(
        logprobs_BT,
        micro.old_logprobs_BT,
        micro.mask_BT,
        micro.advantages_BT,
        micro.weights_BT,
        micro.distilled_B,
        logprobs_BT.detach() - 0.1 if algorithm.needs else None,
        micro.losses,
    )
    return sum(algorithm.loss(batch).values())


def gradients(lm):
    return {name: p.grad.clone() for name, p in lm.named_parameters() if p.grad is not None}


PLAIN, PACKED, PADDED = qwen2(), PolicyModule(qwen2(), "tree"), PolicyModule(qwen2(), "rows")


def teaches_as_separate_sequences(modules, algorithm, rows, budget, ranks):
    """Whether losses and gradients of the modules, summed over micro-batches and ranks, are those
    of the rows one after the other."""
    PLAIN.zero_grad()
    total = torch.zeros(())
    for row in rows:
        one = collate([row], CPU)
        logprobs = separate_logprobs(PLAIN, row)[None]
        total = total + objective(algorithm, one, logprobs)
    total.backward()
    for module in modules:
        module.zero_grad()
        loss = 0.0
        plan = micro_batches(rows, budget, ranks, shared=module.pack != "rows")
        for part in itertools.chain(*plan):
            micro = collate(part, CPU)
            logprobs, _ = module(micro.nodes, micro.mask_BT, micro.temperatures_B)
            one = objective(algorithm, micro, logprobs)
            one.backward()
            loss += float(one.detach())
        assert loss == pytest.approx(float(total.detach()), rel=1e-5, abs=1e-5)
        expected = gradients(PLAIN)
        scale = max(float(grad.abs().max()) for grad in expected.values())
        for parameter, grad in gradients(module.lm).items():
            difference = float((grad - expected[parameter]).abs().max())
            assert difference <= 1e-5 * max(scale, 1.0), (module.pack, parameter)


@pytest.mark.parametrize("name", ["r3l", "grpo", "gspo", "dapo", "critique_grpo"])
@settings(deadline=None, max_examples=15)
@given(rows=groups(), budget=st.integers(4, 80), ranks=st.integers(1, 3))
def test_packed_losses_and_gradients_equal_those_of_separate_sequences(name, rows, budget, ranks):
    algorithm = registry.REGISTRY[name]()
    teaches_as_separate_sequences((PACKED, PADDED), algorithm, rows, budget, ranks)


@given(families())
@settings(deadline=None, max_examples=20)
def test_the_entropy_of_a_node_equals_that_of_the_policy_at_its_parent(rows):
    made = [made_row(r) for r in rows]
    micro = collate(made, CPU)
    with torch.no_grad():
        _, entropy_BT = PACKED(micro.nodes, micro.mask_BT, micro.temperatures_B)
        for row, entropies in zip(rows, entropy_BT, strict=True):
            full = PLAIN(torch.as_tensor(row, dtype=torch.long)[None]).logits[0].log_softmax(-1)
            expected = -(full.exp() * full).sum(-1)[:-1]
            assert torch.allclose(entropies[1 : len(row)], expected, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
        lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES)),
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=None)),
        lambda: GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=4)),
    ],
)
def test_models_of_other_families_give_equal_logprobs_when_packed(make):
    torch.manual_seed(0)
    lm = make().eval()
    rows = [np.array(r, np.int32) for r in ([1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 7], [8, 2, 3])]
    made = [made_row(r) for r in rows]
    expected = [separate_logprobs(lm, row) for row in made]
    assert attention.resolve("auto", lm) == "tree"
    micro = collate(made, CPU)
    logprobs_BT, _ = PolicyModule(lm, "tree")(micro.nodes, micro.mask_BT, micro.temperatures_B)
    for row, ours, theirs in zip(made, logprobs_BT, expected, strict=True):
        assert torch.allclose(ours[: len(row.token_ids)], theirs, atol=1e-5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=4)),
        lambda: Gemma2ForCausalLM(Gemma2Config(**SIZES)),
    ],
)
def test_a_model_with_windowed_layers_keeps_its_rows_apart(make):
    lm = make()
    assert attention.resolve("auto", lm) == "rows"
    with pytest.raises(UserError, match=r"learner\.pack=tree.*sliding_attention.*pack=rows"):
        attention.resolve("tree", lm)


def test_attention_on_a_cpu_is_in_float32_if_products_are_in_bfloat16(monkeypatch):
    kernel, dtypes = attention.sdpa_attention_forward, set()

    def noting(module, query, *others, **options):
        dtypes.add(query.dtype)
        return kernel(module, query, *others, **options)

    monkeypatch.setattr(attention, "sdpa_attention_forward", noting)
    ids = np.arange(3, 13, dtype="i4")
    micro = collate([made_row(ids)] * 2, CPU)
    for lm, compute in ((qwen2(), torch.bfloat16), (qwen2().bfloat16(), None)):
        logprobs_BT = PolicyModule(lm, "tree", compute)(
            micro.nodes, micro.mask_BT, micro.temperatures_B
        )[0]
        logprobs_BT.sum().backward()
    assert dtypes == {torch.float32}


def test_packing_changes_neither_checkpointed_layers_nor_the_saved_model(tmp_path: Path):
    rows = [np.array(r, np.int32) for r in ([1, 2, 3, 4], [1, 2, 5])]
    micro = collate([made_row(r, r > 1, advantage=1.0) for r in rows], CPU)
    found = []
    for checkpointed in (False, True):
        lm = qwen2().train()
        if checkpointed:
            lm.gradient_checkpointing_enable()
        PolicyModule(lm, "tree")(micro.nodes, micro.mask_BT, micro.temperatures_B)[
            0
        ].sum().backward()
        found.append(gradients(lm))
    assert all(torch.allclose(found[0][name], found[1][name], atol=1e-6) for name in found[0])
    lm.save_pretrained(tmp_path)
    assert attention.TREE not in (tmp_path / "config.json").read_text()
