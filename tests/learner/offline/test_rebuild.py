"""Published versions, rebuilt as model folders."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from learner.cli import main
from learner.offline.rebuild import check_fingerprints
from learner.publishing.publisher import WeightPublisher
from r3l.errors import UserError
from r3l.models.model_folder import model_digest
from r3l.records import GroupPlan, Task
from r3l.run.config import dump, load
from r3l.weights.journal import Journal
from r3l.weights.low_rank import PREFIX
from r3l.weights.manifest import Adapters, fingerprint
from tests.buffer.fakes import Desk, finished
from tests.learner.fakes import tiny_model

LAST = 6
Versions = dict[int, dict[str, torch.Tensor]]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Versions]:
    """A run folder with the journal of real optimizer steps in bfloat16, and what was published."""
    run = tmp_path_factory.mktemp("published")
    model = tiny_model(run / "policy")
    (run / "config.yaml").write_text(dump(load(None, [f"model={model}"])))
    lm = AutoModelForCausalLM.from_pretrained(model)
    optimizer = torch.optim.AdamW(lm.parameters(), lr=1e-6)
    journal = Journal(run / "journal", versions=99)
    serving = WeightPublisher("tcp://127.0.0.1:0", anchor_every=4, journal=journal)
    versions: Versions = {}
    torch.manual_seed(0)
    for version in range(LAST + 1):
        if version:
            tokens = torch.randint(0, 100, (2, 20))
            lm(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        weights = list(lm.named_parameters())
        serving.publish(version, weights, torch.bfloat16)
        versions[version] = {name: p.detach().bfloat16().clone() for name, p in weights}
    serving.close()
    return run, versions


def rebuild(run: Path, version: int, out: Path) -> Any:
    command = ["weights", str(run), "--version", str(version), "--out", str(out)]
    return CliRunner().invoke(main, command, catch_exceptions=False)


def test_every_version_is_rebuilt_bit_for_bit_as_a_model_folder(
    published: tuple[Path, Versions], tmp_path: Path
) -> None:
    run, versions = published
    for version, expected in versions.items():
        done = rebuild(run, version, tmp_path / f"{version}")
        assert done.exit_code == 0 and "no store" in done.output, done.output
        found = load_file(tmp_path / f"{version}" / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)
    lm = AutoModelForCausalLM.from_pretrained(tmp_path / f"{LAST}")
    assert lm.dtype == torch.bfloat16
    assert torch.equal(lm.get_input_embeddings().weight, expected["model.embed_tokens.weight"])
    assert (tmp_path / "0" / "tokenizer.json").exists()
    kinds = [journal_base(run, version) for version in range(LAST + 1)]
    assert kinds == [-1, 0, 1, 2, -1, 4, 5]


def test_a_version_of_adapters_is_rebuilt_with_the_base_model_merged_in(tmp_path: Path) -> None:
    model = tiny_model(tmp_path / "policy")
    (tmp_path / "config.yaml").write_text(dump(load(None, [f"model={model}"])))
    name, base = "model.layers.0.mlp.up_proj.weight", load_file(model / "model.safetensors")
    a, b = torch.randn(2, base[name].shape[1]), torch.randn(base[name].shape[0], 2)
    layer = f"{PREFIX}{name.removesuffix('.weight')}"
    adapters = [(f"{layer}.lora_A.weight", a), (f"{layer}.lora_B.weight", b)]
    journal = Journal(tmp_path / "journal", versions=9)
    serving = WeightPublisher("tcp://127.0.0.1:0", journal=journal)
    serving.publish(3, adapters, adapters=Adapters(model_digest(model), "float32", 0.5))
    serving.close()
    assert rebuild(tmp_path, 3, tmp_path / "out").exit_code == 0
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found.pop(name), base.pop(name) + (b @ a) * 0.5)
    assert found.keys() == base.keys() and all(torch.equal(found[n], base[n]) for n in base)
    base[next(iter(base))] += 1
    save_file(base, model / "model.safetensors")
    refused = rebuild(tmp_path, 3, tmp_path / "again")
    assert refused.exit_code == 2 and "adapters belong to another base model" in refused.output
    assert not (tmp_path / "again").exists()


def journal_base(run: Path, version: int) -> int:
    return Journal(run / "journal")._entry(version).base


def test_a_version_that_cannot_be_rebuilt_leaves_nothing(
    published: tuple[Path, Versions], tmp_path: Path
) -> None:
    run, out = Path(shutil.copytree(published[0], tmp_path / "run")), tmp_path / "out"
    Journal(run / "journal").path(2).unlink()
    done = rebuild(run, 3, out)
    assert done.exit_code == 2 and not out.exists()
    [line] = done.output.splitlines()
    assert "version 3 builds on version 2" in line
    (out / "other").mkdir(parents=True)
    assert f"--out {out}: is not empty" in rebuild(run, 1, out).output
    [line] = rebuild(tmp_path, 1, tmp_path / "other").output.splitlines()
    assert "has no config.yaml" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_the_digest_is_compared_with_the_fingerprints_of_the_attempts(
    published: tuple[Path, Versions], tmp_path: Path
) -> None:
    journal = Journal(published[0] / "journal")
    (second, _), (third, _) = journal.rebuild(2), journal.rebuild(3)
    desk = Desk(tmp_path / "buffer", max_staleness=99)
    desk.add([Task("t/0", "workshop", 0)])
    desk.set_version(3)
    for version, printed in (
        (2, "e"),
        (2, fingerprint("e", second)),
        (3, fingerprint("e", second)),
    ):
        lease = desk.lease(version=version, plan=GroupPlan(1))
        desk.put(lease.group_id, finished(version=version), fingerprint=(version, printed))
    desk.store.close()
    assert check_fingerprints(desk.folder, second).startswith("1 of 2 groups")
    with pytest.raises(UserError, match=r"1 groups \(for example g0000000003\) were"):
        check_fingerprints(desk.folder, third)


@pytest.mark.system
def test_the_versions_of_a_real_run_are_those_of_its_checkpoints(
    ended: Path, tmp_path: Path
) -> None:
    assert Journal(ended / "journal").held() == list(range(10))
    for version in (3, 6, 9):
        assert rebuild(ended, version, tmp_path / f"{version}").exit_code == 0
        found = load_file(tmp_path / f"{version}" / "model.safetensors")
        kept = load_file(ended / "checkpoints" / f"step-{version:06d}" / "model.safetensors")
        assert found.keys() == kept.keys()
        assert all(torch.equal(found[name], kept[name]) for name in kept)
