"""The warm-up: batches, the loss of lessons, and weights that a seed determines."""

import itertools
import random
import signal
from dataclasses import replace
from typing import get_args, get_type_hints

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from learner.step.deepspeed_trainer import DeepSpeedTrainer
from learner.warmup import tiny_policy, warmup
from learner.warmup.lessons import Lesson
from learner.warmup.recipe import RECORD, Recipe
from r3l.algorithms.losses import imitation_loss
from r3l.errors import UserError
from r3l.run.settings.learner import LearnerConfig
from r3l.training.micro_batch import collate


@pytest.fixture(scope="module")
def small(chat, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    tiny_policy.build_model(chat.tokenizer, seed=0, hidden=64, layers=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trainer(small):
    return DeepSpeedTrainer(small, LearnerConfig(lr=3e-3, tokens_per_micro_batch=2048))


def test_the_loss_of_lessons_is_the_weighted_mean_over_their_tokens(small, lessons, trainer):
    model = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32)
    batch = [min(lessons, key=_length), max(lessons, key=_length)]
    batch.append(next(lesson for lesson in lessons if lesson.kind == "retry"))
    for others in (0.0, 0.3):
        total = weights = 0.0
        for lesson in batch:
            ids = torch.from_numpy(lesson.token_ids.astype(np.int64))[None]
            with torch.no_grad():
                logprobs = model(ids).logits[0, :-1].log_softmax(-1)
            each = -logprobs.gather(1, ids[0, 1:, None])[:, 0]
            mask = torch.from_numpy(lesson.response_mask[1:])
            weight = torch.where(mask, 1.0, others)
            total, weights = total + float(each @ weight), weights + float(weight.sum())
        rows = warmup.rows_of_lessons(batch, others=others)
        _, parts = trainer.losses(collate(rows, trainer.device), imitation_loss)
        assert parts["loss"] == pytest.approx(total / weights, rel=1e-4)


def test_the_kinds_of_lessons_are_named_with_their_shares(lessons):
    some = [next(lesson for lesson in lessons if lesson.kind == kind) for kind in ("play", "retry")]
    shown = warmup.kinds_of([some[0], some[0], some[0], some[1]])
    assert shown == "demonstrations 75%, guided retries 25%"
    assert set(warmup.NAMES) == set(get_args(get_type_hints(Lesson)["kind"]))


def test_training_lowers_the_loss_on_replies(lessons, trainer):
    batches = [lessons[i : i + 8] for i in range(0, len(lessons), 8)]
    losses = warmup.fit(trainer, itertools.cycle(batches[:2]), steps=20, reading=0.0)
    assert len(losses) == 20 and losses[-1] < losses[0] - 1.0


@pytest.mark.parametrize("core", [["<end>", "a", "b"], ["a", "b"]])
def test_only_ordinary_tokens_are_copied_wherever_the_special_ones_are(core):
    vocabulary = Tokenizer(models.WordLevel({w: i for i, w in enumerate(core)}, unk_token="a"))
    vocabulary.add_special_tokens(["<end>"])
    made = PreTrainedTokenizerFast(tokenizer_object=vocabulary, eos_token="<end>")
    assert made.convert_ids_to_tokens(warmup._words(made)) == ["a", "b"]
    made.add_tokens(["word"])
    assert made.convert_ids_to_tokens(warmup._words(made)) == ["word"]


def test_batches_stay_within_their_budget_and_hold_every_lesson(lessons):
    cut = list(warmup.batches(lessons, 1000, random.Random(0)))
    assert sum(len(batch) for batch in cut) == len(lessons)
    for batch in cut:
        assert len(batch) == 1 or len(batch) * max(map(_length, batch)) <= 1000


def test_the_same_seed_gives_the_same_weights_and_a_folder_can_be_gone_on_from(tmp_path):
    for name, start in (("a", None), ("b", None), ("c", tmp_path / "a")):
        recipe = Recipe(("keys",), start and str(start), steps=2, tokens_per_batch=512).resolved()
        warmup.warmup(recipe, tmp_path / name)
    a, b, c = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert any(not torch.equal(a[key], c[key]) for key in a)


def test_a_lesson_longer_than_the_context_is_refused_before_anything_is_written(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tiny_policy, "CONTEXT_LENGTH", 200)
    with pytest.raises(UserError, match=r"--env keys: a lesson .*\d+ tokens") as caught:
        warmup.warmup(Recipe(("keys",), steps=2).resolved(), tmp_path / "out")
    assert "context of 200; shorten the tasks" in str(caught.value)
    assert "\n" not in str(caught.value) and not (tmp_path / "out").exists()


def test_an_interrupted_warm_up_continues_to_the_same_weights(tmp_path, monkeypatch, capsys):
    recipe = Recipe(("keys",), steps=4, tokens_per_batch=512).resolved()
    warmup.warmup(recipe, tmp_path / "whole")
    monkeypatch.setattr(warmup, "SAVE_S", 0.0)
    row, made = warmup.rows_of_lessons, itertools.count()

    def interrupted(batch, **more):
        if next(made) == 2:
            raise KeyboardInterrupt
        return row(batch, **more)

    monkeypatch.setattr(warmup, "rows_of_lessons", interrupted)
    with pytest.raises(KeyboardInterrupt):
        warmup.warmup(recipe, tmp_path / "cut")
    assert not (tmp_path / "cut" / RECORD).exists()
    with pytest.raises(UserError, match="another unfinished warm-up"):
        warmup.warmup(replace(recipe, lr=1e-4), tmp_path / "cut")
    warmup.warmup(recipe, tmp_path / "cut")
    assert "continued after step " in capsys.readouterr().out
    whole, cut = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict()
        for name in ("whole", "cut")
    )
    assert all(torch.equal(whole[key], cut[key]) for key in whole)
    left = {path.name for path in (tmp_path / "cut").iterdir()}
    assert left == {path.name for path in (tmp_path / "whole").iterdir()} and RECORD in left


def test_a_stopped_warm_up_keeps_the_step_that_it_finished(tmp_path, monkeypatch, capsys):
    recipe = Recipe(("keys",), steps=3, tokens_per_batch=512).resolved()
    row, made = warmup.rows_of_lessons, itertools.count(1)

    def terminated(batch, **more):
        if next(made) == 2:
            signal.raise_signal(signal.SIGTERM)
        return row(batch, **more)

    monkeypatch.setattr(warmup, "rows_of_lessons", terminated)
    with pytest.raises(KeyboardInterrupt):
        warmup.warmup(recipe, tmp_path / "cut")
    assert "stops when this step is saved" in capsys.readouterr().err
    warmup.warmup(recipe, tmp_path / "cut")
    assert "continued after step 2" in capsys.readouterr().out
    assert next(made) == 4


def _length(lesson):
    return len(lesson.token_ids)
