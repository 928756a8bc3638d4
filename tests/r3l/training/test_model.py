"""The policy module: log-probabilities of the selected tokens, in little memory."""

import math
import shutil
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from r3l.errors import UserError
from r3l.run.settings.learner import Compute
from r3l.training import model
from r3l.training.attention import Pack
from r3l.training.micro_batch import collate
from r3l.training.model import PolicyModule
from tests.r3l.training.fakes import made_row


def test_selected_logprobs_equal_those_of_full_logits_at_each_rows_temperature(
    model_folder: Path,
) -> None:
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = torch.randint(3, 250, (3, 40))
    select = torch.rand(3, 40) < 0.3
    select[:, 0] = False
    temperatures = torch.tensor([0.7, 1.3, 1.0])
    full = (lm(ids).logits.float() / temperatures[:, None, None]).log_softmax(-1)
    rows = [
        made_row(i.numpy(), s.numpy(), temperature=float(t))
        for i, s, t in zip(ids, select, temperatures, strict=True)
    ]
    micro = collate(rows, torch.device("cpu"))
    logprobs, entropy = PolicyModule(lm)(micro.nodes, select, micro.temperatures_B)
    expected = full[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    assert torch.allclose(logprobs[:, 1:][select[:, 1:]], expected[select[:, 1:]], atol=1e-5)
    entropies = -(full.exp() * full).sum(-1)[:, :-1]
    assert torch.allclose(entropy[:, 1:][select[:, 1:]], entropies[select[:, 1:]], atol=1e-5)
    assert not logprobs[~select].any() and not entropy.requires_grad


def test_a_token_that_rows_share_is_scored_at_the_temperature_of_each(model_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = np.arange(3, 13, dtype="i4")
    rows = [made_row(ids, temperature=t) for t in (0.5, 2.0, 0.5)]
    micro = collate(rows, torch.device("cpu"))
    assert len(micro.nodes.token_ids_N) == 10
    logits = lm(torch.tensor(ids[None], dtype=torch.long)).logits[0, :-1]
    cold, hot, again = PolicyModule(lm, "tree")(micro.nodes, micro.mask_BT, micro.temperatures_B)[0]
    for ours, temperature in ((cold, 0.5), (hot, 2.0), (again, 0.5)):
        full = (logits / temperature).log_softmax(-1)
        expected = full.gather(1, torch.tensor(ids[1:, None], dtype=torch.long))[:, 0]
        assert torch.allclose(ours[1:], expected, atol=1e-5)


def test_products_in_bfloat16_leave_weights_and_gradients_in_float32(model_folder: Path) -> None:
    ids = np.arange(3, 43, dtype="i4")
    micro = collate([made_row(ids)], torch.device("cpu"))
    found = {}
    for compute in get_args(Compute):
        module = model.load_model(model_folder, torch.float32, compute=compute)
        logprobs, _ = module(micro.nodes, micro.mask_BT, micro.temperatures_B)
        logprobs.sum().backward()
        grads = {p.grad.dtype for p in module.parameters() if p.grad is not None}
        norm = torch.nn.utils.get_total_norm([p.grad for p in module.parameters()])
        assert logprobs.dtype == torch.float32 and grads == {torch.float32}
        found[compute] = logprobs.detach(), float(norm)
    exact, rounded = found["dtype"], found["bfloat16"]
    assert found["auto"][1] == exact[1], "a small model"
    assert 0 < (exact[0] - rounded[0]).abs().max() < 0.05
    assert rounded[1] == pytest.approx(exact[1], rel=0.02)


@pytest.mark.parametrize(
    ("has", "parameters", "dtype", "gpu", "chosen"),
    [
        ("avx512_bf16", 30, "float32", False, torch.bfloat16),
        ("amx_bf16", 30, "float32", False, torch.bfloat16),
        ("avx512_f", 30, "float32", False, None),
        ("sve", 30, "float32", False, None),
        ("avx512_bf16", 29, "float32", False, None),
        ("avx512_bf16", 30, "bfloat16", False, None),
        ("avx512_bf16", 30, "float32", True, None),
    ],
)
def test_large_models_are_computed_in_bfloat16_on_a_cpu_that_has_it(
    has: str,
    parameters: int,
    dtype: str,
    gpu: bool,
    chosen: torch.dtype | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if gpu:  # older versions of PyTorch lack it
        monkeypatch.delattr(torch.cpu, "get_capabilities")
    else:
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {has: True})
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(model, "LARGE", 30)
    lm = torch.nn.Linear(parameters, 1, bias=False, dtype=getattr(torch, dtype))
    lm.dtype = lm.weight.dtype
    assert model.resolve_compute("auto", lm) == chosen
    assert model.resolve_compute("dtype", lm) is None


def test_logits_are_divided_by_the_temperature_before_the_softmax() -> None:
    """Logits (0, 2 ln 3) are odds of 1 to 9 at T = 1, 1 to 3 at T = 2 and 1 to 81 at T = 0.5."""
    head = torch.nn.Linear(2, 2)
    head.weight.data, head.bias.data = torch.eye(2), torch.tensor([0.0, math.log(3)])
    hidden = torch.tensor([[0.0, math.log(3)]] * 4)
    temperatures = torch.tensor([1.0, 2.0, 2.0, 0.5])
    logprobs, entropies = model.score(head, hidden, torch.tensor([1, 1, 0, 0]), temperatures)
    assert logprobs.exp().tolist() == pytest.approx([0.9, 0.75, 0.25, 1 / 82])
    assert entropies.tolist() == pytest.approx([0.325083, 0.562335, 0.562335, 0.065861], abs=1e-6)


class LargestTensor(TorchDispatchMode):
    """Remembers how many elements the largest tensor had that any operation made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for one in made if isinstance(made, tuple | list) else [made]:
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.untyped_storage().nbytes() // 4)
        return made


@pytest.mark.parametrize("pack", ["rows", "tree"])
def test_no_tensor_of_the_loss_grows_with_length_times_vocabulary(
    pack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    monkeypatch.setattr(model, "CHUNK", 16)
    vocab = 5000
    config = Qwen2Config(
        vocab_size=vocab,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
    )
    for length in (50, 500):
        policy = PolicyModule(Qwen2ForCausalLM(config), pack)
        ids = np.arange(length, dtype="i4")
        rows = [made_row(ids), made_row(ids[:9])]
        micro = collate(rows, torch.device("cpu"))
        with LargestTensor() as largest:
            policy(micro.nodes, micro.mask_BT, micro.temperatures_B)[0].sum().backward()
        assert largest.elements == 16 * vocab, (length, largest.elements)


def test_the_backward_pass_recomputes_neither_the_last_chunk_nor_entropies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Counted(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func in (torch.ops.aten.mm.default, torch.ops.aten.exp.default):
                made[func.name()].append(len(args[0]))
            return func(*args, **(kwargs or {}))

    monkeypatch.setattr(model, "CHUNK", 16)
    made: dict[str, list[int]] = {"aten::mm": [], "aten::exp": []}
    head, hidden = torch.nn.Linear(8, 50, bias=False), torch.randn(33, 8)
    with Counted():
        logprobs, _ = model.score(head, hidden, torch.arange(33), torch.ones(33))
        assert made == {"aten::mm": [1, 16, 16], "aten::exp": [1, 16, 16]}
        logprobs.sum().backward()
    gradients = [50] * 3  # of the weights, by chunk
    assert sorted(made["aten::mm"]) == sorted([1, 16, 16, 1, 16, *gradients])
    assert made["aten::exp"] == [1, 16, 16]


@pytest.mark.parametrize("pack", ["tree", "rows"])
def test_a_gradient_that_many_rows_share_is_the_same_bit_for_bit_with_several_threads(
    model_folder: Path, pack: Pack
) -> None:
    """128 rows part after 4 tokens: as many summands for the node where they part."""
    random = np.random.default_rng(0)
    ids = random.integers(3, 250, (128, 12), dtype="i4")
    ids[:, :4] = np.arange(3, 7)
    rows = [made_row(i, np.arange(12) >= 4) for i in ids]
    micro = collate(rows, torch.device("cpu"))
    module = model.load_model(model_folder, torch.float32, pack)
    weights_BT = torch.tensor(random.normal(size=micro.mask_BT.shape), dtype=torch.float32)
    before, found = torch.get_num_threads(), set()
    torch.set_num_threads(2)
    try:
        for _ in range(4):
            module.zero_grad()
            logprobs, _ = module(micro.nodes, micro.mask_BT, micro.temperatures_B)
            (logprobs * weights_BT).sum().backward()
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            found.add(b"".join(grad.numpy().tobytes() for grad in grads))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_a_product_is_the_same_bit_for_bit_wherever_a_file_has_the_weights(
    model_folder: Path, tmp_path: Path
) -> None:
    """Single rows, whose products depend on the address of the weights."""
    folder = Path(shutil.copytree(model_folder, tmp_path / "model"))
    held = {name: w.clone() for name, w in load_file(folder / "model.safetensors").items()}
    found, begins = set[bytes](), set[int]()
    row = torch.randn(1, 128, generator=torch.Generator().manual_seed(0))
    for length in range(0, 64, 8):
        metadata = {"format": "pt", "title": "x" * length}  # before the weights
        save_file(held, folder / "model.safetensors", metadata=metadata)
        begins |= {t.data_ptr() % 64 for t in load_file(folder / "model.safetensors").values()}
        lm = model.load_model(folder, torch.float32).lm
        assert {weights.data_ptr() % model.ALIGNMENT for weights in lm.parameters()} == {0}
        wide = [w for w in lm.parameters() if w.dim() == 2]
        products = [nn.functional.linear(row[:, : w.shape[1]], w) for w in wide]
        found.add(b"".join(product.detach().numpy().tobytes() for product in products))
    assert len(begins) > 1 and len(found) == 1


@pytest.mark.parametrize(
    ("kind", "lost", "shape", "reason"),
    [
        ("olmo", "lm_head.weight", None, r"lack lm_head.weight \(1 in all\)"),
        (
            "olmo",
            "model.layers.0.mlp.up_proj.weight",
            [3, 3],
            r"shape \[3, 3\].*config.json says \[96",
        ),
        ("gpt_neox", "gpt_neox.final_layer_norm.bias", None, "lack gpt_neox.final_layer_norm.bias"),
        ("gpt_neox", "", None, ""),
        ("qwen2", "model.layers.1.mlp.up_proj.weight", None, "lack model.layers.1.mlp.up_proj"),
    ],
)
def test_no_parameter_begins_with_random_numbers(
    tmp_path: Path, kind: str, lost: str, shape: list[int] | None, reason: str
) -> None:
    """Whatever the family's names are: the model itself says what it has."""
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 64}
    config = AutoConfig.for_model(kind, **sizes, num_attention_heads=4, pad_token_id=None)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    if lost:
        del weights[lost]
    if shape:
        weights[lost] = torch.zeros(shape)
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    if not reason:
        model.load_model(tmp_path, torch.float32, "rows")
        return
    with pytest.raises(UserError, match=reason):
        model.load_model(tmp_path, torch.float32, "rows")
