"""The optimizer step on a real DeepSpeed engine: the cut and the ranks do not matter."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from launch.plan import free_port
from learner.step import model
from learner.step.batch import Row, collate, rows_of
from learner.step.model import PolicyModule
from learner.step.trainer import Trainer
from r3l.algorithms.r3l import R3LConfig
from r3l.config import load
from tests.learner.groups import explore_group
from tests.learner.model import measured

ROOT = Path(__file__).parents[3]


def tiny_folder(folder: Path) -> Path:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("model"))


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


GROUPS = [
    {"base_rewards": (0.0, 1.0), "retry_rewards": (1.0, None), "pivot": 2},
    {"base_rewards": (0.0, 0.0), "retry_rewards": (1.0, 0.0), "pivot": 1},
    {"base_rewards": (1.0, 0.0), "retry_rewards": (None, 0.0), "pivot": 3},
]
PROGRAM = """
import json, sys
from pathlib import Path
from learner.step.batch import rows_of
from learner.step.trainer import Trainer
from r3l.config import load
from tests.learner.groups import explore_group
from tests.learner.model import measured
from tests.learner.step.test_trainer import GROUPS
out, model, *variants = [a for a in sys.argv[1:] if not a.startswith("--local_rank")]
groups = [explore_group(**g, seed=i) for i, g in enumerate(GROUPS)]
steps = {variant: [] for variant in variants}
for variant in variants:
    for name in ("r3l", "gspo"):
        settings = [f"algorithm={name}", "algorithm.group_size=4", "learner.lr=1e-3"]
        config = load(None, [*settings, f"learner.{variant}"])
        algorithm = config.algorithm.build()
        trainer = Trainer(Path(model), config.learner, algorithm)
        batch = rows_of(groups, algorithm)
        steps[variant] += [measured(trainer.step(batch)) for _ in range(3)]
if trainer.rank == 0:
    Path(out).write_text(json.dumps(steps))
"""


def run_steps(
    model: Path, out: Path, *variants: str, ranks: int = 1
) -> dict[str, list[dict[str, float]]]:
    """Three optimizer steps of each of two algorithms under each learner setting, in processes of
    their own, under DeepSpeed's launcher."""
    script = out.with_suffix(".py")
    script.write_text(PROGRAM)
    command = [sys.executable, str(script)]
    if ranks > 1:
        runner = [sys.executable, "-m", "deepspeed.launcher.runner", "--num_gpus", str(ranks)]
        command = [*runner, "--master_port", str(free_port()), str(script)]
    compiled = out.with_suffix(".compiled")
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    env |= {"TORCH_EXTENSIONS_DIR": str(compiled)}
    done = subprocess.run(
        [*command, str(out), str(model), *variants], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-3000:]
    # A compiler run that is killed would leave a lock that the next learner waits for.
    assert not compiled.exists(), "DeepSpeed compiled at run time"
    return json.loads(out.read_text())


@pytest.mark.system
def test_losses_do_not_depend_on_packing_micro_batches_ranks_or_zero_stage(
    model_folder: Path, tmp_path: Path
) -> None:
    one = ("pack=tree", "pack=rows", "tokens_per_micro_batch=64")
    two = ("zero_stage=0", "zero_stage=1", "zero_stage=2", "zero_stage=3")
    variants = run_steps(model_folder, tmp_path / "one", *one)
    variants |= run_steps(model_folder, tmp_path / "two", *two, ranks=2)
    whole = variants["pack=tree"]
    for name, steps in variants.items():
        for step, (ours, theirs) in enumerate(zip(steps, whole, strict=True)):
            where = (name, step)
            for key in ("loss", "loss_policy", "loss_sft", "entropy", "behaviour_kl"):
                assert ours[key] == pytest.approx(theirs[key], rel=1e-5, abs=1e-6), (*where, key)
            assert ours["grad_norm"] == pytest.approx(theirs["grad_norm"], rel=1e-3), where
    assert whole[2]["loss"] < whole[0]["loss"]
    assert whole[0]["shared_tokens"] > 0.4 and whole[0]["padding"] == 0.0
    assert variants["pack=rows"][0]["shared_tokens"] == 0.0


def test_the_rows_of_a_step_are_the_same_however_groups_are_ordered() -> None:
    algorithm = R3LConfig(group_size=4).build()
    groups = [explore_group(**g, seed=i) for i, g in enumerate(GROUPS)]
    one, other = rows_of(groups, algorithm), rows_of(groups[::-1], algorithm)
    terms = [sorted((r.advantage, r.weight) for r in rows) for rows in (one, other)]
    assert terms[0] == terms[1] and len(one) == len(other) > 0


def test_a_group_of_weight_two_counts_twice_and_one_of_weight_zero_not_at_all(
    model_folder: Path,
) -> None:
    config = load(None, ["algorithm=reflect_grpo", "algorithm.group_size=4", "learner.lr=1e-12"])
    # What takes all kinds of terms: a KL to the reference, and auxiliary samples.
    algorithm = replace(config.algorithm.build(), sft_weight=0.5)
    groups = [explore_group(**g, seed=i) for i, g in enumerate(GROUPS)]
    plain, weighted = rows_of(groups, algorithm), rows_of(groups, algorithm, [2.0, 0.0, 1.0])
    counts = [round(b.weight / a.weight) for a, b in zip(plain, weighted, strict=True)]
    assert set(counts) == {0, 1, 2}
    repeated = [row for row, count in zip(plain, counts, strict=True) for _ in range(count)]
    trainer = Trainer(model_folder, config.learner, algorithm)
    got, want = measured(trainer.step(weighted)), measured(trainer.step(repeated))
    assert got["loss_policy"] != 0.0 and got["loss_sft"] > 0.0
    for key in ("loss", "loss_policy", "loss_sft", "grad_norm"):
        assert got[key] == pytest.approx(want[key], rel=1e-5), key
