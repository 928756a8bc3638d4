"""Samples from a model in this process.

    requests ─► rows ─► tokens found in the prefix cache ─► read the others ─► logits of the last
                 ▲                                                                     │
                 └──────────── append; a row that has ended is a reply ◄── draw ◄──────┘

Requests join the running rows, and rows leave when they end. Rows with the same tokens, such as
attempts at one task, are computed once; each draws its own next token.

Axes: B rows, R computed rows, Q tokens to read, T tokens of context, V vocabulary.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from r3l.errors import EngineFailed, RequestRefused, UserError
from r3l.models.model_folder import check_model_folder, read_tokenizer
from r3l.models.model_path import model_path
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import FinishReason, Sample, SampleParams
from r3l.training.attention import obstacle_of
from r3l.training.model import load_whole
from r3l.training.prefix_cache import PrefixCache
from r3l.training.response_rules import ResponseRules, forbid
from r3l.training.trainer import default_device, load_weights

ROWS = 256
"""The most rows that run at the same time."""
READ_TOKENS = 4096
"""The most prompt tokens in a forward pass, including padding. A pass has at least one prompt."""
PADDING = 256
"""The most padding tokens in a forward pass: about the cost of another pass."""
COMPILE_S = 60.0
"""The most seconds for the grammar of a request. A thread cannot be ended: one that takes longer
goes on to its end."""
CACHE_BYTES = 1 << 28
"""Size of the prefix cache, which is emptied when full."""


@dataclass(eq=False)
class _Row:
    """A running request.

    Its tokens are in row `place` of the tables. It has `length` tokens, and the first `read` of
    them are in the cache. At most `budget` tokens are sampled. `grammar`: what they must form;
    `checked`: whether that is known.
    `dice`: the request's own random numbers, if it has a seed.
    """

    prompt: Sequence[int]
    params: SampleParams
    done: asyncio.Future[Sample]
    budget: int
    checked: bool = False
    grammar: Any = None
    dice: Random | None = None
    version: int = 0
    place: int = -1
    length: int = 0
    read: int = 0
    logprobs: list[float] = field(default_factory=list)

    @property
    def unread(self) -> int:
        return self.length - self.read


class LocalPolicy:
    """Samples from a causal language model with full attention. It is a policy
    (r3l.rollout.policy_interface).

    `model`: "builtin", "smollm2", a model folder, or a transformers model with its ChatFormat.
    `device`: for a folder; by default a GPU if there is one. `context_length`: the most tokens of a
    context, by default as many as the model reads. If you change the weights other than by `load`,
    increase `version`, so that nothing computed with the old weights is used. The tables `tokens`
    and `slots` [ROWS, context] belong to the rows. Raises UserError.
    """

    def __init__(
        self,
        model: str | Path | tuple[Any, ChatFormat],
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: str | torch.device | None = None,
        context_length: int | None = None,
    ) -> None:
        lm, self.chat = model if isinstance(model, tuple) else _load(model, dtype, device)
        if obstacle := obstacle_of(lm):
            raise UserError(f"LocalPolicy: the model {obstacle}; sample from it with vLLM instead")
        self.model = lm.eval()
        config = lm.config.get_text_config()
        weights = next(lm.parameters())
        self.device = weights.device
        longest = int(config.max_position_embeddings)
        self.context_length = min(longest, context_length or longest)
        self.version = self.cached_version = 0
        self.generator = torch.Generator().manual_seed(seed)
        self.rules = ResponseRules(
            getattr(self.chat, "tokenizer", None), int(config.vocab_size), self.chat.end_id
        )
        self.cache = PrefixCache(config, CACHE_BYTES, least=2 * self.context_length, like=weights)
        self.tokens = np.zeros((ROWS, self.context_length), dtype=np.int64)
        self.slots = np.zeros_like(self.tokens)
        self.free = list(range(ROWS))
        self.rows: list[_Row] = []
        self.waiting: deque[_Row] = deque()
        self.serving: asyncio.Task[None] | None = None

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copies the weights of a trainer into the model. Running requests continue with them, and
        `version` rises by 1. Raises UserError if names or shapes differ."""
        load_weights(self.model, weights)
        self.version += 1

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        """Samples one response. `params.priority` has no effect. Raises RequestRefused if the
        response's grammar cannot be compiled."""
        budget = min(params.max_tokens, self.context_length - len(token_ids))
        if budget <= 0:
            return Sample((), (), self.version, self.version, "overflow")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Sample] = loop.create_future()
        own = None if params.seed is None else Random(params.seed)
        self.waiting.append(_Row(token_ids, params, done, budget, dice=own))
        if self.serving is None:
            self.serving = loop.create_task(self._serve())
        return await done

    async def score(self, token_ids: Sequence[int], start: int) -> tuple[float, ...]:
        """Returns the log-probabilities (nats) of the tokens from position `start` on, in one
        forward pass (r3l.rollout.policy_interface.ScoringPolicy). Raises EngineFailed."""
        if len(token_ids) > self.context_length:
            raise EngineFailed(
                f"{len(token_ids)} tokens do not fit the context of {self.context_length}",
                cause="context_overflow",
            )
        ids_1T = torch.tensor([list(token_ids)], device=self.device)
        with torch.no_grad():
            logits_TV = self.model(input_ids=ids_1T, use_cache=False).logits[0].float()
        logprobs_TV = logits_TV[start - 1 : -1].log_softmax(-1)
        return tuple(logprobs_TV.gather(1, ids_1T[0, start:, None])[:, 0].tolist())

    async def _serve(self) -> None:
        try:
            while self.waiting or self.rows:
                for _ in range(8):  # lets requests that are about to be made join
                    await asyncio.sleep(0)
                await self._compile_grammars()
                with torch.no_grad():
                    self._sample_once()
        except Exception as error:
            for row in (*self.rows, *self.waiting):
                if not row.done.done():
                    row.done.set_exception(error)
        finally:
            self.serving = None
            self.waiting.clear()
            if self.rows:  # a failure, perhaps between placing tokens and reading them
                self.cache.clear()
            for row in list(self.rows):
                self._remove(row)

    async def _compile_grammars(self) -> None:
        """Gives the waiting requests their grammars. Those that are new are compiled in a thread,
        so that the event loop goes on; sampling waits, so that the same seed draws the same."""
        while row := next((row for row in self.waiting if not row.checked), None):
            row.checked = True
            asked = row.params.json_schema, row.params.structural_tag
            try:
                if not self.rules.knows(*asked):
                    async with asyncio.timeout(COMPILE_S):
                        await _in_thread(self.rules.grammar, *asked)
                row.grammar = self.rules.grammar(*asked)
            except TimeoutError:
                why = f"the grammar takes more than {COMPILE_S:g} s to compile; write a smaller one"
                self._refuse(row, RequestRefused(why, cause="grammar_refused"))
            except Exception as error:  # that of one request
                self._refuse(row, error)

    def _refuse(self, row: _Row, error: Exception) -> None:
        self.waiting.remove(row)
        if not row.done.done():
            row.done.set_exception(error)

    def _sample_once(self) -> None:
        """Admits requests, then samples two tokens for each new row and one for every other row."""
        for row in [row for row in self.rows if row.done.cancelled()]:
            self._remove(row)
        self._admit()
        if self.version != self.cached_version or self._needed() > self.cache.room:
            self._forget()
        # The order matters: a row may continue tokens that an earlier row reads.
        prompts = [row for row in self.rows if row.unread > 1]
        for row in prompts:
            self._place(row)
        for some in _cut([row for row in prompts if row.unread > 1]):
            self._advance(some)
        for row in self.rows:
            self._place(row)
        if self.rows:
            self._advance(list(self.rows))

    def _admit(self) -> None:
        reserved = sum(len(row.prompt) + row.budget for row in self.rows)
        while self.waiting and self.free:
            row = self.waiting[0]
            reserved += len(row.prompt) + row.budget
            if reserved >= self.cache.capacity:
                break
            self.rows.append(self.waiting.popleft())
            row.place, row.length, row.version = self.free.pop(), len(row.prompt), self.version
            self.tokens[row.place, : row.length] = row.prompt

    def _needed(self) -> int:
        return sum(row.unread + 1 for row in self.rows)

    def _forget(self) -> None:
        """Empties the cache and marks all tokens of the rows as unread."""
        self.cache.clear()
        self.cached_version = self.version
        for row in self.rows:
            row.read = 0

    def _place(self, row: _Row) -> None:
        """Assigns slots to the row's unread tokens. Tokens whose slots already exist count as read,
        except the last token, which is read again for its logits."""
        unread = slice(row.read, row.length)
        before = int(self.slots[row.place, row.read - 1]) if row.read else 0
        slots, known = self.cache.place(before, self.tokens[row.place, unread].tolist())
        self.slots[row.place, unread] = slots
        row.read = min(row.read + known, row.length - 1)

    def _advance(self, rows: Sequence[_Row]) -> None:
        """Reads the unread tokens of `rows`, and samples one token for each row."""
        ends: dict[int, int] = {}
        computed: list[_Row] = []
        index: list[int] = []
        for row in rows:
            end = int(self.slots[row.place, row.length - 1])
            if end not in ends:
                ends[end] = len(computed)
                computed.append(row)
            index.append(ends[end])
        logits_BV = self._logits(computed)[index]
        forbid(logits_BV, [row.grammar for row in rows])
        temperatures_B1 = torch.tensor([[row.params.temperature] for row in rows])
        drawn = draw(logits_BV, temperatures_B1.to(self.device), self._uniform(rows))
        for row, token, logprob in zip(rows, *(t.tolist() for t in drawn), strict=True):
            self.tokens[row.place, row.length] = token
            row.read, row.length = row.length, row.length + 1
            row.logprobs.append(logprob)
            if row.grammar is not None:
                row.grammar.accept_token(token)
            stopped = token == self.chat.end_id or self._stops(row)
            if stopped or len(row.logprobs) == row.budget:
                self._reply(row, stopped=stopped)

    def _uniform(self, rows: Sequence[_Row]) -> Tensor:
        """Returns a random number of [0, 1) for each row, [B, 1]."""
        uniform_B1 = torch.rand((len(rows), 1), generator=self.generator, dtype=torch.double)
        for i, row in enumerate(rows):
            if row.dice is not None:
                uniform_B1[i] = row.dice.random()
        return uniform_B1.to(self.device)

    def _stops(self, row: _Row) -> bool:
        """Whether a row's last token completes one of its stop texts."""
        if not row.params.stop:
            return False
        response = self.tokens[row.place, len(row.prompt) : row.length]
        return self.rules.stops(response, row.params.stop)

    def _logits(self, rows: Sequence[_Row]) -> Tensor:
        """Reads the rows' unread tokens, and returns the logits [R, V] after their last tokens."""
        place_R1 = np.array([[row.place] for row in rows])
        read_R1 = np.array([[row.read] for row in rows])
        length_R1 = np.array([[row.length] for row in rows])
        position_RQ = length_R1 + np.arange(-max(row.unread for row in rows), 0)
        padding_RQ = position_RQ < read_R1
        position_RQ = position_RQ.clip(0)
        writing_RQ = np.where(padding_RQ, 0, self.slots[place_R1, position_RQ])
        column_T = np.arange(length_R1.max())
        context_RT = self.slots[place_R1, column_T]
        self.cache.point(self._here(writing_RQ), self._here(context_RT))
        later_RQT = self._here(column_T > position_RQ[..., None])
        mask_RQT = torch.zeros_like(later_RQT, dtype=self.model.dtype)
        mask_RQT.masked_fill_(later_RQT, -torch.inf)
        logits_R1V = self.model(
            input_ids=self._here(self.tokens[place_R1, position_RQ]),
            position_ids=self._here(position_RQ),
            attention_mask=mask_RQT[:, None],
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits
        return logits_R1V[:, 0].float()

    def _here(self, array: Any) -> Tensor:
        """Returns an array as a tensor on the model's device."""
        return torch.from_numpy(array).to(self.device)

    def _reply(self, row: _Row, *, stopped: bool) -> None:
        token_ids = self.tokens[row.place, len(row.prompt) : row.length].tolist()
        reason: FinishReason = "length" if row.budget == row.params.max_tokens else "overflow"
        reason = "stop" if stopped else reason
        if not row.done.done():
            logprobs = tuple(row.logprobs)
            row.done.set_result(
                Sample(tuple(token_ids), logprobs, row.version, self.version, reason)
            )
        self._remove(row)

    def _remove(self, row: _Row) -> None:
        self.rows.remove(row)
        self.free.append(row.place)


async def _in_thread(work: Callable[..., object], *given: object) -> None:
    """Runs something in a thread of its own. The program does not wait for this thread at its end,
    as it would for a thread of the event loop."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def tell(error: Exception | None) -> None:
        if done.done():  # nobody waits any longer
            return
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    def run() -> None:
        failure: Exception | None = None
        try:
            work(*given)
        except Exception as error:
            failure = error
        with suppress(RuntimeError):  # the event loop has ended
            loop.call_soon_threadsafe(tell, failure)

    threading.Thread(target=run, name="grammar", daemon=True).start()
    await done


def draw(logits_BV: Tensor, temperature_B1: Tensor, uniform_B1: Tensor) -> tuple[Tensor, Tensor]:
    """Draws a token for each row, with a random number of [0, 1). Returns the tokens and their
    log-probabilities, which are defined in `r3l.rollout.policy_interface.Sample`."""
    greedy_B1 = temperature_B1 == 0
    logprobs_BV = (logits_BV / temperature_B1.where(~greedy_B1, 1.0)).log_softmax(-1)
    # The token in which the cumulative distribution passes a uniform number.
    share_BV = logprobs_BV.double().exp().cumsum(-1)
    drawn_B1 = torch.searchsorted(share_BV, uniform_B1 * share_BV[:, -1:], right=True)
    drawn_B1 = torch.where(greedy_B1, logits_BV.argmax(-1, keepdim=True), drawn_B1)
    drawn_B1 = drawn_B1.clamp(max=logits_BV.shape[1] - 1)
    return drawn_B1[:, 0], logprobs_BV.gather(1, drawn_B1)[:, 0]


def _cut(rows: Sequence[_Row]) -> Iterator[list[_Row]]:
    """Splits rows, in order, into lists with at most READ_TOKENS tokens and PADDING padding tokens.
    A list has at least one row."""
    some: list[_Row] = []
    for row in rows:
        unread = [other.unread for other in (*some, row)]
        tokens = max(unread) * len(unread)
        if some and (tokens > READ_TOKENS or tokens - sum(unread) > PADDING):
            yield some
            some = []
        some.append(row)
    if some:
        yield some


def _load(
    model: str | Path, dtype: torch.dtype, device: str | torch.device | None
) -> tuple[nn.Module, ChatFormat]:
    """Loads a model and its chat format. Raises UserError."""
    folder = model_path(str(model))
    check_model_folder(folder, f"model {model}")
    chat = ChatFormat(read_tokenizer(folder, f"model {model}"))
    lm = load_whole(folder, dtype, f"model {model}")
    return lm.to(device or default_device()).requires_grad_(False), chat
