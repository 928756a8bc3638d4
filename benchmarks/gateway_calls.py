"""`python -m benchmarks.gateway_calls`: what a call costs through the gateway.

The same prompts are sampled in turn by `VLLMPolicy.sample` and by /v1/chat/completions, which a
client in another process asks. CPU seconds are those of this process: the engine and the gateway.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from statistics import median

import click

from actors.engine import VLLMPolicy
from actors.gateway.parsers import ReplyReader, reader_of
from actors.gateway.session import Session
from actors.gateway.web_app import WebApp
from benchmarks.actors import settings
from r3l.models.model_path import builtin_policy, model_path
from r3l.records import Task
from r3l.rollout.policy_interface import SampleParams
from r3l.run.actor_metrics import ActorMetrics

ASKED = [{"role": "user", "content": "station 0 has drum"}]
CLIENT = """
import asyncio, json, sys
import httpx

async def main(url, at_once, body, keys):
    limits = httpx.Limits(max_connections=at_once)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=600, trust_env=False) as http:
        waiting = asyncio.Semaphore(at_once)
        async def call(key):
            async with waiting:
                headers = {"Authorization": "Bearer " + key}
                reply = await http.post("/v1/chat/completions", json=body, headers=headers)
                reply.raise_for_status()
        await call(keys[0])
        print("begin", flush=True)
        await asyncio.gather(*map(call, keys[1:]))
        print("end", flush=True)

given = json.load(sys.stdin)
asyncio.run(main(*given))
"""
Measured = tuple[float, float]
"""Milliseconds and CPU milliseconds of a call."""


async def timed(work: Callable[[], Awaitable[object]], calls: int) -> Measured:
    began, cpu = time.monotonic(), time.process_time()
    await work()
    return 1e3 * (time.monotonic() - began) / calls, 1e3 * (time.process_time() - cpu) / calls


async def alone(
    policy: VLLMPolicy, reader: ReplyReader, params: SampleParams, calls: int, at_once: int
) -> Measured:
    """Measures `VLLMPolicy.sample`."""
    ids = reader.chat.open(ASKED, ())
    places = asyncio.Semaphore(at_once)

    async def call(number: int) -> None:
        async with places:
            await policy.sample(ids, replace(params, seed=number))

    return await timed(lambda: asyncio.gather(*map(call, range(calls))), calls)


async def over_http(
    policy: VLLMPolicy, reader: ReplyReader, params: SampleParams, calls: int, at_once: int
) -> Measured:
    """Measures calls of a client in another process, each in an attempt of its own."""
    made = [
        Session(
            policy, reader, ActorMetrics(), Task("t", "agent", n),
            partial(_params, replace(params, seed=n)),
        )
        for n in range(calls + 1)
    ]  # fmt: skip
    sessions = {session.key: session for session in made}
    async with WebApp(sessions).served("127.0.0.1", 0) as url:
        client = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        assert client.stdin is not None and client.stdout is not None
        given = [url, at_once, {"model": "policy", "messages": ASKED}, list(sessions)]
        client.stdin.write(json.dumps(given).encode())
        client.stdin.close()
        await client.stdout.readline()
        measured = await timed(client.stdout.readline, calls)
        assert await client.wait() == 0
    return measured


def _params(params: SampleParams, call: int) -> SampleParams:
    return params


async def measure(model: str, tokens: int, calls: int, repeat: int) -> None:
    """Starts the engine and compares, with 1 and with 64 calls at once."""
    config = settings(model, 64)
    policy = VLLMPolicy.start(model_path(config.model), config.actor)
    reader, params = reader_of(policy.chat, config.actor.agent), SampleParams(tokens, 1.0)
    try:
        for at_once in (1, 64):
            count = calls if at_once > 1 else calls // 8
            rounds = []
            for number in range(repeat + 1):
                given = policy, reader, params, count, at_once
                pair = await alone(*given), await over_http(*given)
                rounds += [pair] if number else []  # the first warms up
            for n, name in enumerate(("sample alone", "over HTTP")):
                wall, cpu = (median(pair[n][of] for pair in rounds) for of in (0, 1))
                print(f"{at_once} at once, {name}: {wall:.2f} ms, {cpu:.2f} CPU ms a call")
    finally:
        policy.close()


@click.command()
@click.option("--model", default=str(builtin_policy()), help="default: the built-in policy")
@click.option("--tokens", default=8, show_default=True, help="the most tokens of a reply")
@click.option("--calls", default=640, show_default=True, help="calls of a round")
@click.option("--repeat", default=5, show_default=True, help="rounds")
def main(model: str, tokens: int, calls: int, repeat: int) -> None:
    """Compares calls through the gateway with sampling alone."""
    asyncio.run(measure(model, tokens, calls, repeat))


if __name__ == "__main__":
    main()
