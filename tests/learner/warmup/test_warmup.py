"""The tiny policy, the lessons it is taught, and the folder that ships."""

import asyncio
import itertools
import json
import random
import shutil

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.base import SeededTasks, Skill
from envs.builtin.policy import builtin_policy
from learner.step.batch import collate
from learner.step.trainer import Trainer
from learner.warmup import lessons as demonstrations
from learner.warmup import tiny_policy, warmup
from r3l.config import LearnerConfig
from r3l.errors import UserError
from r3l.rollout import reflection
from r3l.rollout.chat import ChatFormat
from r3l.rollout.interfaces import SampleParams
from tests.r3l.rollout.test_chat import FORGETFUL

SKILL = Skill(withheld=4, waste=0.03)
TEXTS = [
    "step 1 sees: it spoils, tin needs brush. station 2 has lamp",
    '{"trajectory_summary":"step 0 fits, 1 spoils","retry_from_step":null}',
    "tins lamplight  Hé llo 日本\t\r\n\n 1234 {}[] <|im_end|> <b>🔥",
    "",
]


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def chat():
    return ChatFormat(AutoTokenizer.from_pretrained(builtin_policy()))


@pytest.fixture(scope="module")
def lessons(chat):
    """All lessons of 40 tasks, with the name of their world."""
    found = []
    for name in ("workshop", "keys"):
        teacher = demonstrations.Teacher(demonstrations.demonstrating(name), chat, SKILL)
        for task in SeededTasks(name).tasks("warmup", 20):
            found += teacher.lessons(task)
    return found


def test_any_text_survives_the_tokenizer_and_a_known_word_is_one_token(tmp_path):
    worlds = [demonstrations.demonstrating(name) for name in ("workshop", "keys")]
    made = tiny_policy.build_tokenizer(t for world in worlds for t in demonstrations.texts(world))
    made.save_pretrained(tmp_path)
    tiny_policy.build_model(made, seed=0).config.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = made.encode(text, add_special_tokens=False)
        assert loaded.encode(text, add_special_tokens=False) == ids
        assert loaded.decode(ids) == text
    for word in (
        " tin",
        " brush",
        " purple",
        " brass",
        "use",
        "turn",
        " 7",
        '","retry_from_step":',
    ):
        assert len(loaded.encode(word, add_special_tokens=False)) == 1


def test_a_lesson_is_the_conversation_as_the_template_writes_it(chat, lessons):
    (play,) = itertools.islice((x for x in lessons if x.kind == "play"), 1)
    world = demonstrations.demonstrating("workshop")
    (task,) = SeededTasks("workshop").tasks("warmup", 1)
    turns = [{"role": "system", "content": world.spec.system_prompt}]
    observation, _ = world.reset(seed=task.seed)
    rng = random.Random(task.seed)
    ended = False
    while not ended:
        action = world.demonstrate(SKILL, rng)
        turns += [
            {"role": "user", "content": observation},
            {"role": "assistant", "content": action},
        ]
        observation, _, terminated, truncated, _ = world.step(action)
        ended = terminated or truncated
    text = chat.tokenizer.apply_chat_template(turns, tokenize=False)
    assert chat.tokenizer.decode(play.token_ids) == text.rstrip("\n")
    said = "".join(f"{turn['content']}<|im_end|>" for turn in turns[2::2])
    assert chat.tokenizer.decode(play.token_ids[play.response_mask]) == said


def test_only_what_is_said_under_guidance_is_learned_from_a_retry(chat, lessons):
    retries = [lesson for lesson in lessons if lesson.kind == "retry"]
    assert len(retries) > 10
    late = 0
    for lesson in retries:
        first = int(np.argmax(lesson.response_mask))
        before = chat.tokenizer.decode(lesson.token_ids[:first])
        assert before.count("advice: ") == 1
        late += "<|im_start|>system\nadvice: " in before
        assert "advice" not in chat.tokenizer.decode(lesson.token_ids[first:])
    assert late > 3


def test_the_reflections_that_are_taught_parse(chat, lessons):
    for lesson in lessons:
        if lesson.kind == "reflect":
            text = chat.text(lesson.token_ids[lesson.response_mask].tolist())
            assert list(json.loads(text)) == list(reflection.FIELDS)
            assert reflection.parse(text, 7)


@pytest.fixture(scope="module")
def small(chat, tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    tiny_policy.build_model(chat.tokenizer, seed=0, hidden=64, layers=2).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trainer(small):
    return Trainer(small, LearnerConfig(lr=3e-3, tokens_per_micro_batch=2048), None)


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
        _, parts = trainer._losses(collate(rows, trainer.device))
        assert parts["loss"] == pytest.approx(total / weights, rel=1e-4)


def test_training_lowers_the_loss_on_replies(lessons, trainer):
    batches = [lessons[i : i + 8] for i in range(0, len(lessons), 8)]
    losses = warmup.fit(trainer, itertools.cycle(batches[:2]), steps=20, reading=0.0)
    assert len(losses) == 20 and losses[-1] < losses[0] - 1.0


def test_batches_stay_within_their_budget_and_hold_every_lesson(lessons):
    cut = list(warmup.batches(lessons, 1000, random.Random(0)))
    assert sum(len(batch) for batch in cut) == len(lessons)
    for batch in cut:
        assert len(batch) == 1 or len(batch) * max(map(_length, batch)) <= 1000


def test_the_local_policy_reports_the_log_probabilities_of_the_model(chat):
    model = AutoModelForCausalLM.from_pretrained(builtin_policy(), dtype=torch.float32)
    policy = tiny_policy.LocalPolicy(model, chat, seed=1)
    prompts = [chat.open("", text) + chat.prompt_ids for text in ("station 0 has tin", "x y z")]

    async def ask():
        params = SampleParams(max_tokens=6)
        return await asyncio.gather(*(policy.sample(ids, params) for ids in prompts))

    for ids, sample in zip(prompts, asyncio.run(ask()), strict=True):
        whole = torch.tensor([[*ids, *sample.token_ids]])
        with torch.no_grad():
            logprobs = model(whole).logits[0].log_softmax(-1)
        expected = [
            float(logprobs[len(ids) + k - 1, token]) for k, token in enumerate(sample.token_ids)
        ]
        assert sample.logprobs == pytest.approx(expected, abs=1e-3)
        assert (sample.finish_reason == "stop") == (sample.token_ids[-1] == chat.end_id)
        assert 1 <= len(sample.token_ids) <= 6


def test_the_command_regenerates_the_shipped_model_and_tokenizer(tmp_path):
    made = json.loads((builtin_policy() / "warmup.json").read_text())
    while isinstance(made["from"], dict):
        made = made["from"]
    arguments = made["command"].split()[2:]
    arguments[arguments.index("--out") + 1] = str(tmp_path / "tiny")
    result = CliRunner().invoke(
        warmup.warmup_command, [*arguments, "--steps", "3", "--measured", "2"]
    )
    assert result.exit_code == 0, result.output
    assert "warmup step 3/3" in result.output and "workshop (2 tasks): success" in result.output
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json"):
        assert (tmp_path / "tiny" / name).read_text() == (builtin_policy() / name).read_text(), name
    shipped = AutoModelForCausalLM.from_pretrained(builtin_policy()).state_dict()
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "tiny").state_dict()
    assert {k: (v.shape, v.dtype) for k, v in again.items()} == {
        k: (v.shape, v.dtype) for k, v in shipped.items()
    }


def test_the_same_seed_gives_the_same_weights_and_a_folder_can_be_gone_on_from(tmp_path):
    settings = {"steps": 2, "tokens_per_batch": 512, "measured": 0}
    for name, start in (("a", None), ("b", None), ("c", tmp_path / "a")):
        warmup.warmup(["keys"], start, tmp_path / name, **settings)
    a, b, c = (AutoModelForCausalLM.from_pretrained(tmp_path / name).state_dict() for name in "abc")
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert any(not torch.equal(a[key], c[key]) for key in a)


def test_a_model_whose_template_forgets_reasoning_is_warmed_up_on_request(tmp_path):
    start, out = tmp_path / "start", tmp_path / "out"
    shutil.copytree(builtin_policy(), start)
    (start / "chat_template.jinja").write_text(FORGETFUL)
    arguments = ["--env", "keys", "--model", str(start), "--out", str(out)]
    arguments += ["--steps", "1", "--measured", "0"]
    refused = CliRunner().invoke(warmup.warmup_command, arguments)
    assert "--earlier-reasoning keep" in str(refused.exception) and not out.exists()
    arguments += ["--earlier-reasoning", "keep"]
    assert CliRunner().invoke(warmup.warmup_command, arguments).exit_code == 0
    made = json.loads((out / "warmup.json").read_text())
    assert made["command"].endswith("--earlier-reasoning keep")


def test_the_command_refuses_an_existing_folder_a_missing_model_and_an_unknown_world(tmp_path):
    with pytest.raises(UserError, match=r"--out .*: exists"):
        CliRunner().invoke(
            warmup.warmup_command,
            ["--env", "keys", "--out", str(tmp_path)],
            catch_exceptions=False,
        )
    with pytest.raises(UserError, match=r"--model .*: no config.json"):
        warmup.warmup(["keys"], tmp_path / "none", tmp_path / "out")
    with pytest.raises(UserError, match="env 'nowhere': unknown"):
        CliRunner().invoke(
            warmup.warmup_command,
            ["--env", "nowhere", "--out", str(tmp_path / "out")],
            catch_exceptions=False,
        )
    assert not (tmp_path / "out").exists()
    for wrong in (["--steps", "0"], ["--lr", "-3"], ["--tokens-per-batch", "0"]):
        arguments = ["--env", "keys", "--out", str(tmp_path / "out"), *wrong]
        assert CliRunner().invoke(warmup.warmup_command, arguments).exit_code == 2


def test_the_shipped_policy_is_small_and_has_heads_that_vllm_takes():
    folder = builtin_policy()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4_000_000
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "qwen2"
    assert config["hidden_size"] // config["num_attention_heads"] in (32, 64)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 500_000 <= sum(p.numel() for p in model.parameters()) <= 1_500_000


def test_the_shipped_policy_reads_reflects_and_follows_advice_but_does_not_know_the_world(chat):
    model = AutoModelForCausalLM.from_pretrained(builtin_policy(), dtype=torch.float32)
    quality = warmup.measure(tiny_policy.LocalPolicy(model, chat), "workshop", 64)
    assert 0.05 <= quality.success <= 0.5
    assert quality.parsed >= 0.85
    assert quality.pivots >= 0.7
    assert quality.guided >= quality.restart + 0.15


def _length(lesson):
    return len(lesson.token_ids)
