"""The policy module: log-probabilities of the selected tokens, in little memory."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from learner.step import model
from learner.step.batch import Row, collate
from learner.step.model import PolicyModule


def test_selected_logprobs_equal_those_of_full_logits(model_folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    lm = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32)
    ids = torch.randint(3, 250, (3, 40))
    select = torch.rand(3, 40) < 0.3
    select[:, 0] = False
    full = lm(ids).logits.float().log_softmax(-1)
    rows = [
        Row(i.numpy().astype("i4"), s.numpy(), np.zeros(40, "f4"))
        for i, s in zip(ids, select, strict=True)
    ]
    logprobs, entropy = PolicyModule(lm)(collate(rows, torch.device("cpu")).nodes, select)
    expected = full[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    assert torch.allclose(logprobs[:, 1:][select[:, 1:]], expected[select[:, 1:]], atol=1e-5)
    entropies = -(full.exp() * full).sum(-1)[:, :-1]
    assert torch.allclose(entropy[:, 1:][select[:, 1:]], entropies[select[:, 1:]], atol=1e-5)
    assert not logprobs[~select].any() and not entropy.requires_grad


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
        rows = [Row(ids, ids > 0, np.zeros(length, "f4")), Row(ids[:9], ids[:9] > 0, ids[:9] * 0.0)]
        micro = collate(rows, torch.device("cpu"))
        with LargestTensor() as largest:
            policy(micro.nodes, micro.mask_BT)[0].sum().backward()
        assert largest.elements == 16 * vocab, (length, largest.elements)
