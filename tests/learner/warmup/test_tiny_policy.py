"""The tiny policy, its tokenizer, and the folder that ships."""

import json

from transformers import AutoModelForCausalLM, AutoTokenizer

from learner.warmup import lessons as demonstrations
from learner.warmup import tiny_policy
from r3l.models.model_path import builtin_policy

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


def test_the_shipped_policy_is_small_and_its_head_size_suits_vllm():
    folder = builtin_policy()
    assert sum(path.stat().st_size for path in folder.iterdir()) <= 4_000_000
    config = json.loads((folder / "config.json").read_text())
    assert config["model_type"] == "qwen2"
    assert config["hidden_size"] // config["num_attention_heads"] in (32, 64)
    model = AutoModelForCausalLM.from_pretrained(folder)
    assert 500_000 <= sum(p.numel() for p in model.parameters()) <= 1_500_000
