"""The tiny policy, its tokenizer, and the folder that ships."""

import asyncio
import json

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from envs.builtin.policy import builtin_policy
from learner.warmup import lessons as demonstrations
from learner.warmup import tiny_policy
from r3l.rollout.interfaces import SampleParams

TEXTS = [
    "step 1 sees: it spoils, tin needs brush. station 2 has lamp",
    '{"trajectory_summary":"step 0 fits, 1 spoils","retry_from_step":null}',
    "tins lamplight  Hé llo 日本\t\r\n\n 1234 {}[] <|im_end|> <b>🔥",
    "",
]


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


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.3, 0.0])
def test_the_local_policy_reports_the_log_probabilities_it_draws_with(chat, temperature):
    model = AutoModelForCausalLM.from_pretrained(builtin_policy(), dtype=torch.float32)
    policy = tiny_policy.LocalPolicy(model, chat, seed=1)
    prompts = [chat.open("", text) + chat.prompt_ids for text in ("station 0 has tin", "x y z")]

    async def ask():
        params = SampleParams(max_tokens=6, temperature=temperature)
        return await asyncio.gather(*(policy.sample(ids, params) for ids in prompts))

    for ids, sample in zip(prompts, asyncio.run(ask()), strict=True):
        whole = torch.tensor([[*ids, *sample.token_ids]])
        with torch.no_grad():
            logits = model(whole).logits[0]
        logprobs = (logits / (temperature or 1.0)).log_softmax(-1)
        expected = [
            float(logprobs[len(ids) + k - 1, token]) for k, token in enumerate(sample.token_ids)
        ]
        assert sample.logprobs == pytest.approx(expected, abs=1e-3)
        if not temperature:
            greedy = logits[len(ids) - 1 : -1].argmax(-1).tolist()
            assert greedy == list(sample.token_ids) and min(sample.logprobs) < 0.0
        assert (sample.finish_reason == "stop") == (sample.token_ids[-1] == chat.end_id)
        assert 1 <= len(sample.token_ids) <= 6


def test_the_shipped_policy_is_small_and_its_head_size_suits_vllm():
    folder = builtin_policy()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4_000_000
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "qwen2"
    assert config["hidden_size"] // config["num_attention_heads"] in (32, 64)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 500_000 <= sum(p.numel() for p in model.parameters()) <= 1_500_000
