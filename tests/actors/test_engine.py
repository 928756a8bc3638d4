"""The real engine: weights change under running requests, and it then is what a fresh one is.

One engine serves all tests of this file, so their order matters to the last one only.
"""

import asyncio
import gc
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
import torch
import zmq
from safetensors.torch import save_file

from actors.engine import VLLMPolicy
from actors.weights.subscriber import follow
from learner.publishing.publisher import WeightPublisher
from r3l.errors import EngineDead, EngineSick, RequestRefused, UserError
from r3l.models.model_folder import model_digest
from r3l.models.model_path import builtin_policy
from r3l.records import Task
from r3l.rollout import attempt as rollout
from r3l.rollout.env_interface import EnvSpec
from r3l.rollout.policy_interface import SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.process.memory import freeze_heap
from r3l.run.settings.actor import ActorConfig
from r3l.weights.low_rank import PREFIX
from r3l.weights.manifest import Adapters
from r3l.weights.patch import Patch
from tests.actors.fakes import PROMPT, Served, Tensors, stepped
from tests.r3l.fakes import Corridor

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    gc.unfreeze()  # tests/conftest.py has frozen it; the engine's start has to
    # 2560 tokens of KV
    served = Served(builtin_policy(), max_num_seqs=16, kv_cache_memory_bytes=10 << 20)
    yield served
    served.close()
    freeze_heap()  # without the engine


@pytest.fixture
def endless(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Responses take their whole budget, whatever random weights make of the end token."""
    made = served.policy._params

    def longest(params: SampleParams, budget: int) -> Any:
        sampling = made(params, budget)
        sampling.min_tokens = budget
        return sampling

    monkeypatch.setattr(served.policy, "_params", longest)


@pytest.fixture(scope="module")
def saved() -> Tensors:
    """The weights of the folder that the engine was started from."""
    from safetensors.torch import load_file

    return sorted(load_file(builtin_policy() / "model.safetensors").items())


def test_the_cache_has_the_configured_size(served: Served) -> None:
    worker = psutil.Process().children(recursive=True)
    largest = max(process.memory_full_info().uss for process in worker)  # what it has alone
    assert largest < 900 << 20  # without the argument vLLM takes a GiB, or half the machine


def test_no_garbage_collection_visits_what_was_imported(served: Served) -> None:
    assert gc.get_freeze_count() > 10_000, "a full collection would stop every request"


def test_an_updated_engine_computes_what_a_fresh_engine_does(
    served: Served, saved: Tensors
) -> None:
    fresh, fingerprint = served.logits(), served.fingerprint()
    other = [(name, torch.randn_like(tensor) * 0.1) for name, tensor in saved]
    received = served.subscriber.metrics

    served.update(other)
    assert received.weights_patch_bytes == 0
    assert served.logits() != fresh and served.fingerprint() != fingerprint
    served.update(saved)
    assert received.weights_patch_bytes == 0
    assert served.logits() == fresh and served.fingerprint() == fingerprint

    whole = received.weights_full_bytes
    served.update(stepped(saved))
    assert received.weights_patch_bytes > 0
    assert served.logits() != fresh and served.fingerprint() != fingerprint
    served.update(saved)
    assert served.logits() == fresh and served.fingerprint() == fingerprint
    assert received.weights_full_bytes == whole
    assert served.told_fingerprint() == fingerprint


def test_an_engine_whose_weights_differ_from_those_published_is_sick(
    served: Served, saved: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.update(saved)
    assert served.policy.load_check.fitted
    good = served.policy.engine.update_weights

    async def another_set(request: Any) -> None:
        """What arrives in the engine is not what its manifest says."""
        with open(request.update_info["path"], "r+b") as staged:
            staged.seek(1000)
            byte = staged.read(1)
            staged.seek(1000)
            staged.write(bytes([byte[0] ^ 1]))
        await good(request)

    monkeypatch.setattr(served.policy.engine, "update_weights", another_set)
    with pytest.raises(EngineSick) as sick:
        served.update(stepped(saved))
    assert sick.value.cause == "weights_differ"
    assert served.version not in served.policy.fingerprints
    monkeypatch.undo()
    served.subscriber.staged = None
    served.run(served.policy.engine.resume_generation())
    served.update(saved)


def test_adapters_become_the_same_weights_as_a_whole_merged_set(
    served: Served, saved: Tensors
) -> None:
    name = "model.layers.1.mlp.down_proj.weight"
    torch.manual_seed(0)
    changed = dict(saved)
    a, b = torch.randn(4, changed[name].shape[1]) / 9, torch.randn(changed[name].shape[0], 4) / 9
    changed[name] = changed[name] + (b @ a) * 2
    served.update(list(changed.items()))
    fingerprint, logits = served.fingerprint(), served.logits()
    served.update(saved)
    layer = f"{PREFIX}{name.removesuffix('.weight')}"
    said = Adapters(model_digest(builtin_policy()), "float32", 2.0)
    served.update([(f"{layer}.lora_A.weight", a), (f"{layer}.lora_B.weight", b)], said)
    assert served.told_fingerprint() == served.fingerprint() == fingerprint
    assert served.logits() == logits and served.policy.load_check.fitted
    served.update(saved)


def test_a_partial_set_makes_an_engine_sick_not_half_new(served: Served, saved: Tensors) -> None:
    part = [(name, tensor) for name, tensor in saved if "layers.1.mlp" not in name]
    with pytest.raises(EngineSick, match="are partial: 2 parameters are missing") as sick:
        served.update(part)
    assert sick.value.cause == "weights_partial"
    served.run(served.policy.engine.resume_generation())
    served.update(saved)


def test_a_damaged_patch_is_fetched_whole_while_generation_goes_on(
    served: Served, saved: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.update(saved)
    fingerprint = served.fingerprint()
    served.update(stepped(saved))
    good, failures = Patch.to_wire, served.subscriber.metrics.weights_failed

    def harmed(patch: Patch) -> bytes:
        frame = bytearray(good(patch))
        frame[-5] ^= 1
        return bytes(frame)

    async def scenario() -> None:
        policy = served.policy
        following = asyncio.create_task(follow(served.subscriber, policy.load, every_s=0.01))
        served.version += 1
        served.publisher.publish(served.version, saved)
        while served.version not in policy.fingerprints:
            assert (await policy.sample(PROMPT, SampleParams(20, seed=1))).token_ids
        following.cancel()

    monkeypatch.setattr(Patch, "to_wire", harmed)
    served.run(scenario())
    assert failures == {"patch_damaged": 1}
    assert served.told_fingerprint() == served.fingerprint() == fingerprint


class Trigger(Corridor):
    """A corridor that calls for something after its first door."""

    def __init__(self) -> None:
        super().__init__("abcd")
        self.spec = EnvSpec("corridor", "Answer.", max_steps=4, max_response_tokens=300)
        self.first_door = asyncio.Event()

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.first_door.set()
        return super().step(action)


@pytest.mark.usefixtures("endless")
def test_an_update_during_an_attempt_loses_nothing_and_is_recorded(
    served: Served, saved: Tensors
) -> None:
    served.update([(name, torch.randn_like(tensor) * 0.02) for name, tensor in saved])
    before = served.version

    async def scenario() -> rollout.Attempt:
        env = Trigger()
        attempt = await rollout.start(Task("t", "corridor", 0), served.policy.chat, env)
        playing = asyncio.create_task(
            rollout.play(attempt, served.policy, env, lambda k: SampleParams(250, seed=k))
        )
        await env.first_door.wait()
        while (
            served.policy.metrics.requests_running != 1
        ):  # the second response is not yet under way
            await asyncio.sleep(0.01)
        assert len(attempt.actions) == 1
        await served.take([(name, torch.randn_like(t) * 0.02) for name, t in saved])
        assert len(attempt.actions) == 1, "the update came between two responses"
        await playing
        return attempt

    attempt = served.run(scenario())
    assert attempt.tokens.versions == [before, before, before + 1, before + 1]
    assert attempt.tokens.newest_versions == [before, before + 1, before + 1, before + 1]
    assert [end - start for start, end in attempt.tokens.spans] == [250] * 4
    record = attempt.trajectory(0)
    assert record.oldest_version == before and (record.logprobs[record.response_mask] < 0).all()


@pytest.mark.usefixtures("endless")
def test_cache_entries_of_requests_across_an_update_are_never_reused(
    served: Served, saved: Tensors
) -> None:
    new, old = ([(n, torch.randn_like(t) * 0.02) for n, t in saved] for _ in range(2))
    served.update(new)
    alone = served.logits()
    served.update(old)
    assert served.logits() != pytest.approx(alone, abs=1e-4)

    async def scenario() -> dict[int, float]:
        policy = served.policy
        running = asyncio.create_task(policy.sample(PROMPT, SampleParams(800, seed=1)))
        await asyncio.sleep(0.1)
        await served.take(new)
        beside = await served.ask_logits()
        assert not running.done(), "nothing ran beside the question"
        sample = await running
        assert sample.version == served.version - 1 and len(sample.logprobs) == 800
        return beside

    assert served.run(scenario()) == pytest.approx(alone, abs=1e-4)


def flipped(frame: bytes) -> bytes:
    return frame[:-5] + bytes([frame[-5] ^ 1]) + frame[-4:]


def truncated(frame: bytes) -> bytes:
    return frame[: len(frame) // 2]


@pytest.mark.usefixtures("endless")
def test_a_long_sample_survives_damaged_patches_and_lost_or_silent_publishers(
    served: Served, saved: Tensors, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Everything goes wrong beside one sample; the last weights are whole all the same."""
    subscriber, policy, endpoint = served.subscriber, served.policy, served.publisher.endpoint
    weights = [(name, torch.randn_like(tensor) * 0.02) for name, tensor in saved]
    served.update(weights)
    began, failures = served.version, subscriber.metrics.weights_failed
    failures.clear()
    monkeypatch.setattr(subscriber._link, "timeout_s", 0.5)

    async def published(new: Tensors) -> None:
        served.version += 1
        await asyncio.to_thread(served.publisher.publish, served.version, new)
        while policy.version < served.version or subscriber.loaded is None:
            await asyncio.sleep(0.01)

    async def damaged(harm: Callable[[bytes], bytes]) -> None:
        nonlocal weights
        whole, good = subscriber.metrics.weights_full_bytes, Patch.to_wire
        with monkeypatch.context() as patched:
            patched.setattr(Patch, "to_wire", lambda patch: harm(good(patch)))
            weights = stepped(weights)
            await published(weights)
        assert subscriber.metrics.weights_full_bytes > whole, "what was damaged came whole"

    async def silence() -> None:
        """Ends the publisher; a socket that never replies takes its place for a while."""
        served.publisher.close()
        with zmq.Context() as context, context.socket(zmq.ROUTER) as mute:
            mute.setsockopt(zmq.LINGER, 0)
            mute.bind(endpoint)
            before = failures.get("no_reply", 0)
            while failures.get("no_reply", 0) < before + 2:
                await asyncio.sleep(0.01)
        served.publisher = WeightPublisher(endpoint, anchor_every=1000)

    async def scenario() -> None:
        nonlocal weights
        sampling = asyncio.create_task(policy.sample(PROMPT, SampleParams(1400, seed=1)))
        following = asyncio.create_task(follow(subscriber, policy.load, every_s=0.01))
        for count, harm in enumerate((flipped, truncated), 1):
            await damaged(harm)
            assert failures["patch_damaged"] == count
        await silence()
        await published(weights)  # by the new publisher: whole
        weights, patches = stepped(weights), subscriber.metrics.weights_patch_bytes
        await published(weights)
        assert subscriber.metrics.weights_patch_bytes > patches and failures["patch_damaged"] == 2
        assert set(failures) == {"patch_damaged", "no_reply"}
        assert not sampling.done(), "it ended before the trouble did"
        sample = await sampling
        following.cancel()
        assert sample.version == began and sample.finish_reason == "length"
        assert len(sample.token_ids) == len(sample.logprobs) == 1400
        assert all(logprob < 0 for logprob in sample.logprobs)

    served.run(scenario())
    model = tmp_path / "model"
    shutil.copytree(builtin_policy(), model)
    save_file(dict(weights), model / "model.safetensors", metadata={"format": "pt"})
    fresh = Served(model)
    try:
        assert served.logits() == fresh.logits()
        fresh.run(fresh.policy.hash_first_weights())
        assert fresh.policy.fingerprints == {0: served.told_fingerprint()}
    finally:
        fresh.close()


def test_a_retry_finds_its_prefix_cached_unless_the_weights_changed(
    served: Served, saved: Tensors
) -> None:
    metrics = served.policy.metrics
    prefix = [*PROMPT, *PROMPT[::-1]]
    served.update(saved)

    def hit() -> float:
        cached = metrics.cached_tokens
        served.run(served.policy.sample([*prefix, 300, 301, 302], SampleParams(4)))
        return (metrics.cached_tokens - cached) / len(prefix)

    assert hit() == 0.0
    assert hit() > 0.9
    served.update(stepped(saved))
    assert hit() == 0.0


def test_a_full_context_ends_a_response_with_its_cause(served: Served) -> None:
    policy = served.policy

    def ask(tokens: int) -> Any:
        return served.run(policy.sample([5] * tokens, SampleParams(50, seed=1)))

    assert ask(policy.context_length) == ask(policy.context_length + 9)
    assert ask(policy.context_length).finish_reason == "overflow"
    nearly = ask(policy.context_length - 2)
    assert len(nearly.token_ids) <= 2 and nearly.finish_reason in ("overflow", "stop")


def test_sampling_repeats_under_a_seed(served: Served) -> None:
    def ask(seed: int) -> Any:
        return served.run(served.policy.sample(PROMPT, SampleParams(20, seed=seed)))

    assert ask(1) == ask(1) != ask(2)


def test_requests_of_the_oldest_groups_are_served_first(served: Served, endless: None) -> None:
    policy, ended = served.policy, list[int]()

    async def play(group: int, tokens: int = 20) -> None:
        params = SampleParams(tokens, priority=group)
        await asyncio.gather(*(policy.sample(PROMPT, params) for _ in range(16)))
        ended.append(group)

    async def play_all() -> None:
        # Group 0 fills the engine while all others arrive and wait.
        await asyncio.gather(play(0, 100), *(play(group) for group in (5, 4, 3, 2, 1)))

    served.run(play_all())
    # Neighbours may change places; in the order of arrival the list would be 5, 4, 3, 2, 1.
    assert sorted(ended) == [0, 1, 2, 3, 4, 5]
    assert max(map(ended.index, (1, 2))) < ended.index(5) and ended.index(1) < ended.index(4)


@pytest.mark.usefixtures("endless")
def test_an_engine_whose_cache_is_too_small_counts_preemptions_and_finishes_all_responses(
    served: Served,
) -> None:
    policy = served.policy
    preempted = policy.metrics.preemptions

    async def scenario() -> None:
        asked = SampleParams(max_tokens=250)
        sampling = asyncio.gather(*(policy.sample([9, 8, k], asked) for k in range(10, 26)))
        highest = 0.0
        while not sampling.done():
            highest = max(highest, policy.metrics.kv_cache_usage)
            await asyncio.sleep(0.001)
        assert [len(one.token_ids) for one in await sampling] == [250] * 16
        assert policy.metrics.preemptions > preempted and 0.9 < highest <= 1

    served.run(scenario())


def test_a_response_ends_after_a_stop_text_which_stays_part_of_it(served: Served) -> None:
    def ask(*stop: str) -> Any:
        return served.run(served.policy.sample(PROMPT, SampleParams(40, seed=4, stop=stop)))

    decode = served.policy.chat.tokenizer.decode
    free = ask()
    assert len(free.token_ids) > 10
    stop = decode(free.token_ids[4:7])
    cut = ask("never said", stop)
    assert decode(cut.token_ids).endswith(stop) and cut.finish_reason == "stop"
    count = len(cut.token_ids)
    assert count < len(free.token_ids) == len(free.logprobs) and count == len(cut.logprobs)
    assert cut.token_ids == free.token_ids[:count]


def test_a_request_that_vllm_refuses_fails_by_name() -> None:
    engine, chat = SimpleNamespace(errored=False, generate=None), SimpleNamespace(end_id=2)
    policy = VLLMPolicy(engine, cast(Any, chat), 64, metrics=ActorMetrics(), timeout_s=10.0)
    with pytest.raises(RequestRefused, match="empty string"):
        asyncio.run(policy.sample((1, 3), SampleParams(4, stop=("",))))


def test_an_argument_that_vllm_refuses_is_named() -> None:
    config = ActorConfig(engine={"gpu_memory_utilization": "much"})
    with pytest.raises(UserError, match="gpu_memory_utilization"):
        VLLMPolicy.start(builtin_policy(), config)


def test_a_failed_load_of_weights_ends_the_engine(
    served: Served,
) -> None:
    manifest = served.run(_any_manifest(served))
    with pytest.raises(EngineDead, match="failed to load weights"):
        served.run(served.policy.load("/no/such/file", manifest))


async def _any_manifest(served: Served) -> Any:
    served.subscriber.loaded = None
    return await served.subscriber.latest()


def test_a_killed_engine_is_noticed_by_waiting_and_idle_users(served: Served) -> None:
    assert not served.policy.dead
    (engine,) = (p for p in multiprocessing.active_children() if "Engine" in p.name)
    os.kill(engine.pid or 0, signal.SIGKILL)

    async def idle() -> None:
        while not served.policy.dead:
            await asyncio.sleep(0.01)

    served.run(asyncio.wait_for(idle(), 120))
    with pytest.raises(EngineDead, match="has ended"):
        served.run(served.policy.sample(PROMPT, SampleParams(20)))


def test_a_response_that_new_weights_meet_has_both_versions_and_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = VLLMPolicy(engine=None, chat=None, context_length=10)
    reply = SimpleNamespace(
        token_ids=[5], logprobs=[{5: SimpleNamespace(logprob=-0.5)}], finish_reason="stop"
    )

    newest, loading = [0], [0]

    async def generate(*_: object) -> SimpleNamespace:
        policy.version, policy._sampling = loading[0], newest[0]
        return SimpleNamespace(outputs=[reply], num_cached_tokens=0)

    monkeypatch.setattr(policy, "_generate", generate)
    cases = ((0, 0, 0, 0), (2, 2, 0, 1), (2, 2, 2, 1), (2, 3, 2, 1))  # the last: a load begins
    for newest[0], loading[0], version, counted in cases:
        sample = asyncio.run(policy.sample([1, 2], SampleParams(max_tokens=3)))
        assert (sample.version, sample.newest_version) == (version, newest[0])
        assert policy.metrics.responses_across_versions == counted
