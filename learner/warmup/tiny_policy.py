"""The tiny policy: a Qwen2-architecture model of about a million parameters and its tokenizer.

The tokenizer is Qwen2's with the 256 bytes as its vocabulary, and one added token for each word of
its worlds (with and without a space before it). So it can encode any text, and a word is one token.
Words are *added* tokens because transformers rebuilds the pre-tokenizer of every qwen2 model, which
would split them otherwise.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from typing import Any, get_args

import torch
from tokenizers import AddedToken, pre_tokenizers
from transformers import GenerationConfig, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

from r3l.rollout.chat import ChatFormat
from r3l.rollout.interfaces import Sample, SampleParams
from r3l.rollout.reflection import FIELDS, Outcome

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTEXT_LENGTH = 4096

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# The pieces of every conversation and reflection, one token each. Reflections are JSON without
# white space, because constrained decoding allows nothing else.
SCAFFOLDING = (
    *("system\n", "user\n", "assistant\n"),
    *(f'{lead}"{field}":' for field in FIELDS for lead in ("{", '",', ",", "")),
    *(f'"{outcome}' for outcome in get_args(Outcome)),
    *('"', "null", '"}', '",'),
    *(f"{space}{digit}" for digit in range(10) for space in ("", " ")),
)


def build_tokenizer(texts: Iterable[str]) -> Any:
    """A tokenizer with a token for every word of `texts` and for the pieces of a reflection."""
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
    """A randomly initialised model for `tokenizer`.

    `head` is the head size: vLLM's attention supports 32 and 64, not sizes in between.
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


class LocalPolicy:
    """A policy (r3l.rollout.interfaces) that samples from a model in this process, for
    measurements and tests.

    Requests made at the same time are sampled as one left-padded batch. There is no prefix cache:
    a model of this size can afford to read every prompt again.
    """

    def __init__(self, model: Any, chat: ChatFormat, *, seed: int = 0) -> None:
        self.model, self.chat = model.eval(), chat
        self.context_length = int(model.config.max_position_embeddings)
        self.version = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.waiting: list[tuple[Sequence[int], SampleParams, asyncio.Future[Sample]]] = []

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Sample one response; `params.seed` and `params.json_schema` are not supported."""
        done: asyncio.Future[Sample] = asyncio.get_running_loop().create_future()
        self.waiting.append((token_ids, params, done))
        if len(self.waiting) == 1:
            asyncio.get_running_loop().create_task(self._serve())
        return await done

    async def _serve(self) -> None:
        for _ in range(8):  # so that requests about to be made join the batch
            await asyncio.sleep(0)
        waiting, self.waiting = self.waiting, []
        waiting.sort(key=lambda request: len(request[0]))
        for first in range(0, len(waiting), 64):
            batch = waiting[first : first + 64]
            for (_, _, done), sample in zip(batch, self._generate(batch), strict=True):
                done.set_result(sample)

    @torch.no_grad()
    def _generate(self, batch: Sequence[tuple[Sequence[int], SampleParams, Any]]) -> list[Sample]:
        longest = max(len(ids) for ids, _, _ in batch)
        ids_BT = torch.zeros(len(batch), longest, dtype=torch.long)
        mask_BT = torch.zeros(len(batch), longest, dtype=torch.long)
        for row, (ids, _, _) in enumerate(batch):
            ids_BT[row, longest - len(ids) :] = torch.tensor(ids)
            mask_BT[row, longest - len(ids) :] = 1
        budgets = torch.tensor([params.max_tokens for _, params, _ in batch])
        temperature_B1 = torch.tensor([[params.temperature] for _, params, _ in batch])
        tokens: list[list[int]] = [[] for _ in batch]
        logprobs: list[list[float]] = [[] for _ in batch]
        cache, open_B = None, torch.ones(len(batch), dtype=torch.bool)
        positions_BT = (mask_BT.cumsum(1) - 1).clamp(min=0)
        while open_B.any():
            out = self.model(
                input_ids=ids_BT,
                attention_mask=mask_BT,
                position_ids=positions_BT,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            cache = out.past_key_values
            drawn_B, logprob_B = self._draw(out.logits[:, -1].float(), temperature_B1)
            for row in open_B.nonzero().flatten().tolist():
                tokens[row].append(int(drawn_B[row]))
                logprobs[row].append(float(logprob_B[row]))
                open_B[row] = drawn_B[row] != self.chat.end_id and len(tokens[row]) < budgets[row]
            ids_BT = drawn_B[:, None]
            mask_BT = torch.cat([mask_BT, torch.ones_like(ids_BT)], dim=1)
            positions_BT = positions_BT[:, -1:] + 1
        ended = [row[-1] == self.chat.end_id for row in tokens]
        return [
            Sample(tuple(ids), tuple(lps), self.version, "stop" if end else "length")
            for ids, lps, end in zip(tokens, logprobs, ended, strict=True)
        ]

    def _draw(
        self, logits_BV: torch.Tensor, temperature_B1: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """A token for each row, and its log-probability as in `r3l.rollout.interfaces.Sample`."""
        greedy_B1 = temperature_B1 == 0
        logprobs_BV = (logits_BV / temperature_B1.where(~greedy_B1, 1.0)).log_softmax(-1)
        noise_BV = torch.rand(logprobs_BV.shape, generator=self.generator).clamp(min=1e-20)
        drawn_B = (logprobs_BV - (-noise_BV.log()).log()).argmax(-1)
        drawn_B = torch.where(greedy_B1[:, 0], logits_BV.argmax(-1), drawn_B)
        return drawn_B, logprobs_BV.gather(1, drawn_B[:, None])[:, 0]
