"""Builds the tiny policy: a Qwen2 model with about a million parameters, and its tokenizer.

The tokenizer has Qwen2's class, but its own vocabulary: the 256 bytes. The words of the worlds are
*added* tokens. There are no merges, so all other text is split into bytes.
"""

import re
from collections.abc import Iterable
from typing import Any, get_args

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from r3l.rollout.reflection import FIELDS, TrajectoryOutcome

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTEXT_LENGTH = 4096

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The pieces of every conversation and reflection, one token each. Reflections are JSON without
# white space, because constrained decoding allows none.
SCAFFOLDING = (
    *("system\n", "user\n", "assistant\n"),
    *(f'{lead}"{field}":' for field in FIELDS for lead in ("{", '",', ",", "")),
    *(f'"{outcome}' for outcome in get_args(TrajectoryOutcome)),
    *('"', "null", '"}', '",'),
    *(f"{space}{digit}" for digit in range(10) for space in ("", " ")),
)


def build_tokenizer(texts: Iterable[str]) -> Any:
    """Builds a tokenizer with a token for each word in `texts` and each item of SCAFFOLDING."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: i for i, token in enumerate([PAD, START, END, *alphabet])}
    tokenizer = Qwen2Tokenizer(vocab=vocab, merges=[], eos_token=END, pad_token=PAD)
    words = sorted({word for text in texts for word in re.findall(r"[A-Za-z_]+", text)})
    pieces = dict.fromkeys([*SCAFFOLDING, *(s + word for word in words for s in ("", " "))])
    tokenizer.add_tokens([AddedToken(START, special=True)])
    tokenizer.add_tokens([AddedToken(p, normalized=False) for p in pieces if p not in vocab])
    tokenizer.model_max_length = CONTEXT_LENGTH
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def build_model(
    tokenizer: Any, *, seed: int, hidden: int = 128, layers: int = 4, head: int = 32
) -> Qwen2ForCausalLM:
    """Builds a randomly initialised model for `tokenizer`.

    `head` is the width of an attention head. vLLM supports 32 and 64, but no width in between.
    """
    torch.manual_seed(seed)
    end, pad = (tokenizer.convert_tokens_to_ids(t) for t in (END, PAD))
    config = Qwen2Config(
        vocab_size=-(-len(tokenizer) // 64) * 64,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // head,
        num_key_value_heads=hidden // head,
        max_position_embeddings=CONTEXT_LENGTH,
        tie_word_embeddings=True,
        initializer_range=0.1,  # with 0.02 a model this narrow learns nothing for 200 steps
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=end, pad_token_id=pad, do_sample=True, temperature=1.0
    )
    return model
