"""The in-process policy, against the same model without a cache."""

import asyncio
import threading
from types import SimpleNamespace

import pytest
import torch

from r3l.errors import RequestRefused, UserError
from r3l.rollout.policy_interface import SampleParams
from r3l.training import local_policy
from r3l.training.local_policy import LocalPolicy, draw
from tests.r3l.training.fakes import uneven_model

END, VOCABULARY = 2, 50


@pytest.fixture
def model():
    return uneven_model(VOCABULARY, 100)


@pytest.fixture
def policy(model):
    return LocalPolicy((model, SimpleNamespace(end_id=END)), seed=1)


def ask(policy, prompts, **params):
    """The samples of simultaneous requests."""

    async def all_of_them():
        given = SampleParams(**{"max_tokens": 8} | params)
        return await asyncio.gather(*(policy.sample(prompt, given) for prompt in prompts))

    return asyncio.run(all_of_them())


def logprobs_after(model, prompt, sample, temperature=1.0):
    """The log-probabilities of a response, computed from the whole sequence."""
    logits = model(torch.tensor([[*prompt, *sample.token_ids]])).logits[0, len(prompt) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs[range(len(sample.token_ids)), sample.token_ids].tolist()


def assert_exact(model, prompts, samples, temperature=1.0):
    for prompt, sample in zip(prompts, samples, strict=True):
        expected = logprobs_after(model, prompt, sample, temperature)
        assert sample.logprobs == pytest.approx(expected, abs=1e-4)
        assert (sample.finish_reason == "stop") == (sample.token_ids[-1] == END)


def random_prompts(seed, *lengths):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(3, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_conversations_of_several_turns_have_the_log_probabilities_of_the_model(
    model, policy, temperature
):
    prompts = random_prompts(0, 5, 9, 9, 1, 2, 17) * 2
    for turn in range(4):
        samples = ask(policy, prompts, temperature=temperature)
        assert_exact(model, prompts, samples, temperature)
        (seen,) = random_prompts(turn + 1, 4 + turn)
        prompts = [[*p, *s.token_ids, *seen] for p, s in zip(prompts, samples, strict=True)]


def test_a_later_turn_reads_only_its_own_tokens(model, policy):
    reads = []
    model.register_forward_pre_hook(
        lambda _, args, given: reads.append(given["input_ids"].shape), with_kwargs=True
    )
    (prompt,) = random_prompts(0, 20)
    (sample,) = ask(policy, [prompt], max_tokens=1)
    ask(policy, [[*prompt, *sample.token_ids, 7, 8]], max_tokens=1)
    assert reads == [(1, 20), (1, 3)]


def test_equal_prompts_are_read_once_and_drawn_from_each_for_itself(model, policy):
    reads = []
    model.register_forward_pre_hook(
        lambda _, args, given: reads.append(given["input_ids"].shape), with_kwargs=True
    )
    prompts = random_prompts(0, 20) * 100
    samples = ask(policy, prompts, max_tokens=1)
    assert reads == [(1, 20), (1, 1)]
    assert len({sample.token_ids for sample in samples}) > 10


def test_branches_and_requests_that_join_late_have_the_log_probabilities_of_the_model(
    model, policy
):
    async def converse(prompt, delay):
        for _ in range(delay):
            await asyncio.sleep(0)
        budget = SampleParams(max_tokens=3 + delay % 7)
        first = await policy.sample(prompt, budget)
        grown = [*prompt, *first.token_ids, *prompt[:3]]
        pairs = [(prompt, first)]
        for branch in (grown, [*prompt, *first.token_ids[:2], 9], grown):
            pairs.append((branch, await policy.sample(branch, budget)))
        return pairs

    async def all_of_them():
        prompts = random_prompts(0, 6, 12, 6, 20) * 4
        return await asyncio.gather(*(converse(p, 3 * n) for n, p in enumerate(prompts)))

    for pairs in asyncio.run(all_of_them()):
        assert_exact(model, *zip(*pairs, strict=True))


def test_nothing_computed_with_earlier_weights_is_used(model, policy):
    prompts = random_prompts(0, 12, 12)
    ask(policy, prompts)
    for parameter in model.parameters():
        parameter.add_(0.1 * torch.randn_like(parameter))
    policy.version += 1
    samples = ask(policy, prompts)
    assert_exact(model, prompts, samples)
    assert [sample.version for sample in samples] == [1, 1]


def test_weights_that_change_within_a_response_are_used_from_the_next_token_on(model, policy):
    (prompt,) = random_prompts(0, 12)

    async def change():
        response = asyncio.create_task(policy.sample(prompt, SampleParams(max_tokens=20)))
        while not (policy.rows and len(policy.rows[0].logprobs) > 5):
            await asyncio.sleep(0)
        read = len(policy.rows[0].logprobs)
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        policy.version += 1
        return read, await response

    read, sample = asyncio.run(change())
    expected = logprobs_after(model, prompt, sample)
    assert sample.version == 0
    assert sample.logprobs[read:] == pytest.approx(expected[read:], abs=1e-4)
    assert sample.logprobs[:read] != pytest.approx(expected[:read], abs=1e-4)


def test_a_full_cache_and_waiting_requests_change_nothing(model, monkeypatch):
    monkeypatch.setattr(local_policy, "CACHE_BYTES", 0)  # room for two conversations
    monkeypatch.setattr(local_policy, "ROWS", 5)
    monkeypatch.setattr(local_policy, "READ_TOKENS", 30)
    policy = LocalPolicy((model, SimpleNamespace(end_id=END)))
    prompts = random_prompts(0, *range(3, 33, 2))
    for _ in range(3):
        samples = ask(policy, prompts)
        assert_exact(model, prompts, samples)
        prompts = [[*p, *s.token_ids, 5] for p, s in zip(prompts, samples, strict=True)]


def test_a_prompt_goes_on_from_what_another_has_read_in_an_earlier_pass(model, policy, monkeypatch):
    monkeypatch.setattr(local_policy, "READ_TOKENS", 1)  # a pass for each prompt
    (first, second) = random_prompts(0, 20, 30)
    prompts = [first[:12], first, first[:7] + second, first[:12] + second, first + second]
    assert_exact(model, prompts, ask(policy, prompts))


def test_temperature_zero_takes_the_likeliest_token(model, policy):
    prompts = random_prompts(0, 4, 11)
    samples = ask(policy, prompts, temperature=0.0)
    for prompt, sample in zip(prompts, samples, strict=True):
        logits = model(torch.tensor([[*prompt, *sample.token_ids]])).logits[0]
        assert list(sample.token_ids) == logits.argmax(-1)[len(prompt) - 1 : -1].tolist()
    assert_exact(model, prompts, samples)


def test_a_response_ends_at_its_budget_or_where_the_context_is_full(policy):
    cut, full, none = (
        ask(policy, [prompt], max_tokens=4)[0] for prompt in random_prompts(3, 10, 98, 100)
    )
    assert (len(cut.token_ids), cut.finish_reason) == (4, "length")
    assert (len(full.token_ids), full.finish_reason) == (2, "overflow")
    assert (none.token_ids, none.finish_reason) == ((), "overflow")


def test_an_error_of_the_model_reaches_every_request_and_the_next_one_is_served(model, policy):
    prompts = random_prompts(0, 4, 11)
    hook = model.register_forward_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ask(policy, prompts)
    hook.remove()
    assert_exact(model, prompts, ask(policy, prompts))


def test_a_fixed_seed_draws_what_the_plain_computation_draws(model, policy):
    (prompt,) = random_prompts(0, 7)
    (sample,) = ask(policy, [prompt], max_tokens=20)
    generator, tokens = torch.Generator().manual_seed(1), list(prompt)
    while len(tokens) < len(prompt) + len(sample.token_ids):
        share = model(torch.tensor([tokens])).logits[0, -1].double().softmax(-1).cumsum(-1)
        uniform = torch.rand(1, generator=generator, dtype=torch.double)
        tokens.append(int((share <= uniform).sum()))
    assert list(sample.token_ids) == tokens[len(prompt) :]


def test_tokens_are_drawn_as_often_as_they_are_likely():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -torch.inf])
    for temperature, shares in (
        (1.0, [0.0871, 0.2369, 0.0321, 0.6439, 0.0]),
        (2.0, [0.1674, 0.2760, 0.1015, 0.4551, 0.0]),
    ):
        generator = torch.Generator().manual_seed(0)
        count = 40_000
        uniform = torch.rand(count, 1, generator=generator, dtype=torch.double)
        drawn, logprobs = draw(
            logits.expand(count, 5), torch.full((count, 1), temperature), uniform
        )
        assert (drawn.bincount(minlength=5) / count).tolist() == pytest.approx(shares, abs=0.01)
        assert logprobs.exp().tolist() == pytest.approx([shares[d] for d in drawn], abs=1e-3)


def test_a_request_with_a_seed_draws_the_same_whoever_else_is_served(model, policy):
    prompts = random_prompts(0, 7, 9, 11)
    alone = ask(policy, prompts[:1], seed=5)[0]
    ask(policy, prompts)  # which moves the policy's own random numbers on
    asked = [SampleParams(8, seed=seed) for seed in (5, 6, None)]

    async def together():
        requests = zip([prompts[0], prompts[0], *prompts[2:]], asked, strict=True)
        return await asyncio.gather(*(policy.sample(*request) for request in requests))

    again, other, _ = asyncio.run(together())
    assert again.token_ids == alone.token_ids != other.token_ids


def test_a_context_may_be_shorter_than_the_models(model):
    policy = LocalPolicy((model, SimpleNamespace(end_id=END)), context_length=12)
    (long, full) = ask(policy, random_prompts(0, 10, 12), max_tokens=9)
    assert policy.context_length == 12 and len(long.token_ids) <= 2
    assert (full.token_ids, full.finish_reason) == ((), "overflow")


class Letters:
    """A tokenizer whose token n is the nth letter."""

    def decode(self, token_ids, skip_special_tokens):
        return "".join(chr(97 + token % 26) for token in token_ids)


def test_a_response_ends_where_a_stop_text_does_and_keeps_it(model):
    policy = LocalPolicy((model, SimpleNamespace(end_id=END, tokenizer=Letters())))
    (prompt,) = random_prompts(3, 9)
    (free,) = ask(policy, [prompt], max_tokens=12, seed=3)
    text = Letters().decode(free.token_ids, False)
    stop = text[4:6]
    assert len(stop) == 2
    (cut,) = ask(policy, [prompt], max_tokens=12, seed=3, stop=(stop, "#"))
    end = text.index(stop) + 2
    assert (cut.token_ids, cut.finish_reason) == (free.token_ids[:end], "stop")
    (none,) = ask(policy, [prompt], max_tokens=3, seed=3, stop=("#",))
    assert none.finish_reason == "length"


def test_a_response_under_a_schema_fits_it_and_a_token_without_a_choice_is_certain():
    pytest.importorskip("xgrammar")
    policy = LocalPolicy("builtin", seed=0)
    prompt = [*policy.chat.open("be brief", "what now?"), *policy.chat.prompt_ids]
    answers = {"type": "object", "properties": {"won": {"type": "boolean"}}, "required": ["won"]}
    schema = answers | {"additionalProperties": False}
    for sample in ask(policy, [prompt] * 8, max_tokens=40, json_schema=schema):
        text = policy.chat.text(sample.token_ids)
        assert text in ('{"won":true}', '{"won":false}') and sample.finish_reason == "stop"
        assert sample.logprobs[-1] == 0.0, "only the end fits"


def test_the_event_loop_goes_on_while_a_grammar_is_compiled(policy, monkeypatch):
    """A compilation that ends only when the loop has run something else."""
    ran, seen, compiled = threading.Event(), [], policy.rules.grammar

    def slow(schema, tag):
        seen.append(ran.wait(10) if schema else None)
        return compiled(None)

    monkeypatch.setattr(policy.rules, "grammar", slow)
    monkeypatch.setattr(policy.rules, "knows", lambda schema, tag: schema is None or bool(seen))

    async def both():
        asked = SampleParams(2, json_schema={"type": "object"})
        request = asyncio.create_task(policy.sample([3, 4], asked))
        asyncio.get_running_loop().call_later(0.05, ran.set)
        return await request

    assert len(asyncio.run(both()).token_ids) > 0 and seen[0] is True


def test_a_grammar_that_cannot_be_compiled_or_takes_too_long_is_refused_alone(policy, monkeypatch):
    released, waited_for = threading.Event(), []

    def grammar(schema, tag):
        if schema == {"long": True}:
            waited_for.append(not threading.current_thread().daemon)
            released.wait(10)
        if schema == {"wrong": True}:
            raise RequestRefused("no", cause="grammar_refused")

    monkeypatch.setattr(policy.rules, "grammar", grammar)
    monkeypatch.setattr(policy.rules, "knows", lambda schema, tag: schema is None)
    monkeypatch.setattr(local_policy, "COMPILE_S", 0.1)

    async def all_of_them():
        schemas = (None, {"wrong": True}, {"long": True})
        given = [SampleParams(4, json_schema=schema) for schema in schemas]
        requests = (policy.sample([3, 4, 5], each) for each in given)
        answers = await asyncio.gather(*requests, return_exceptions=True)
        released.set()
        return answers

    fine, wrong, long = asyncio.run(all_of_them())
    assert len(fine.token_ids) > 0 and str(wrong) == "no"
    assert isinstance(long, RequestRefused) and "takes more than 0.1 s to compile" in str(long)
    assert waited_for == [False], "the end of the program does not wait for it"
    assert ask(policy, [[3, 4, 5]])[0].token_ids


def test_a_request_that_comes_while_a_grammar_is_compiled_waits_for_its_own(policy, monkeypatch):
    asked, came = [], threading.Event()

    def grammar(schema, tag):
        if schema not in asked:
            asked.append(schema)
            came.wait(10)

    monkeypatch.setattr(policy.rules, "grammar", grammar)
    monkeypatch.setattr(policy.rules, "knows", lambda schema, tag: schema in asked)

    async def both():
        first, second = ({"title": name} for name in "ab")
        one = asyncio.create_task(policy.sample([3], SampleParams(2, json_schema=first)))
        while not asked:
            await asyncio.sleep(0.01)
        other = asyncio.create_task(policy.sample([3], SampleParams(2, json_schema=second)))
        await asyncio.sleep(0)
        came.set()
        await asyncio.gather(one, other)

    asyncio.run(both())
    assert asked == [{"title": "a"}, {"title": "b"}]


def test_the_weights_of_a_trainer_are_loaded_as_the_next_version(model, policy):
    prompts = random_prompts(0, 12)
    weights = {name: w + 0.1 * torch.randn_like(w) for name, w in model.named_parameters()}
    policy.load(weights)
    samples = ask(policy, prompts)
    assert_exact(model, prompts, samples)
    assert samples[0].version == 1
    with pytest.raises(UserError, match="names or shapes differ"):
        policy.load({})


def test_a_request_that_nobody_waits_for_any_more_makes_room(model, policy):
    async def given_up():
        request = asyncio.create_task(policy.sample([3, 4, 5], SampleParams(90)))
        while not policy.rows:
            await asyncio.sleep(0)
        request.cancel()
        answer = await policy.sample([3, 4, 5], SampleParams(2))
        return len(policy.rows), answer

    rows, answer = asyncio.run(given_up())
    assert rows == 0 and 0 < len(answer.token_ids) <= 2


def test_a_model_with_windowed_layers_is_refused():
    from transformers import Gemma2Config, Gemma2ForCausalLM

    small = {"hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 50, "head_dim": 8}
    lm = Gemma2ForCausalLM(Gemma2Config(**small, num_attention_heads=4, num_key_value_heads=2))
    with pytest.raises(UserError, match=r"LocalPolicy: the model has layers of sliding_attention"):
        LocalPolicy((lm, SimpleNamespace(end_id=END)))


@pytest.mark.parametrize("half", [torch.bfloat16])
def test_a_model_in_half_precision_samples_too(half):
    policy = LocalPolicy("builtin", dtype=half)
    prompt = [*policy.chat.open("be brief", "what now?"), *policy.chat.prompt_ids]
    first, again = ask(policy, [prompt, prompt], temperature=0.0)
    assert first.token_ids == again.token_ids and len(first.token_ids) > 0
