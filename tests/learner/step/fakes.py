"""A tiny model folder, groups to train on, and rows that share prefixes."""

from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from transformers import Qwen2Config, Qwen2ForCausalLM

TINY = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
}


def tiny_folder(folder: Path, **larger: int) -> Path:
    """Save a random Qwen2 without a tokenizer; `larger`: other sizes than TINY's."""
    torch.manual_seed(0)
    config = Qwen2Config(**TINY | larger)
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


GROUPS = [
    {"base_rewards": (0.0, 1.0), "retry_rewards": (1.0, None), "pivot": 2},
    {"base_rewards": (0.0, 0.0), "retry_rewards": (1.0, 0.0), "pivot": 1},
    {"base_rewards": (1.0, 0.0), "retry_rewards": (None, 0.0), "pivot": 3},
]


@st.composite
def families(draw, most=7):
    """Token sequences that branch off each other anywhere, repeat and stop within each other."""
    tokens = st.lists(st.integers(0, 5), min_size=1, max_size=12)
    rows = [draw(tokens)]
    for _ in range(draw(st.integers(0, most - 1))):
        origin = draw(st.sampled_from(rows))
        kept = draw(st.integers(0, len(origin)))
        rows.append(origin[:kept] + draw(tokens))
    return [np.array(row, dtype=np.int32) for row in rows]
