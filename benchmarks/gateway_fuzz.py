"""`python -m benchmarks.gateway_fuzz`: hostile requests to the gateway, next to an honest agent.

Each attempt sends 100 hostile requests in three dialects; some are long. Meanwhile a client in
another process asks as an honest attempt does. Every answer must be a reply or a named refusal, the
honest agent must never wait long, and the memory must not grow. Replies are made up.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import click
import psutil

from actors.gateway.parsers import reader_of
from actors.gateway.session import Session
from actors.gateway.web_app import WebApp
from r3l.models.model_folder import read_tokenizer
from r3l.models.model_path import builtin_policy
from r3l.records import Task
from r3l.rollout.chat import ChatFormat
from r3l.rollout.policy_interface import Sample, SampleParams
from r3l.run.actor_metrics import ActorMetrics
from r3l.run.settings.actor import AgentConfig

EACH = 100
"""Requests of an attempt."""
MOST_WAIT_S = 2.0
HOSTILE = """
import asyncio, collections, json, sys
import httpx
from benchmarks.gateway_requests import fault_of, hostile_requests

async def main(url, keys, seed, each, longest):
    seen, faults = collections.Counter(), []
    limits = httpx.Limits(max_connections=8)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120, trust_env=False) as http:
        for number, key in enumerate(keys):
            async def ask(asked):
                headers = {"Authorization": "Bearer " + key} | asked.headers
                try:
                    got = await http.post(asked.path, content=asked.content, headers=headers)
                except httpx.HTTPError as error:
                    seen[type(error).__name__] += 1
                    if len(asked.content) < 1 << 20:  # longer ones may be refused while they come
                        faults.append(repr(error) + " <- " + repr(asked.content[:300]))
                    return
                seen[got.status_code] += 1
                streamed = got.headers.get("content-type", "").startswith("text/event-stream")
                if why := fault_of(got.status_code, got.content, streamed):
                    faults.append(why + " <- " + repr(asked.content[:300]))
            waiting = list(hostile_requests(seed + number, each, longest=longest))
            while waiting:
                await asyncio.gather(*map(ask, waiting[:8]))
                del waiting[:8]
    print(json.dumps([seen, faults]), flush=True)

asyncio.run(main(*json.load(sys.stdin)))
"""
HONEST = """
import json, sys, time
import httpx

url, key, body = json.load(sys.stdin)
headers = {"Authorization": "Bearer " + key}
with httpx.Client(base_url=url, timeout=120, trust_env=False) as http:
    print("begun", flush=True)
    while True:
        began = time.monotonic()
        reply = http.post("/v1/chat/completions", json=body, headers=headers)
        print(json.dumps([reply.status_code, time.monotonic() - began]), flush=True)
        time.sleep(0.05)
"""


class MadeUp:
    """A policy whose reply is the same text, whatever it is asked."""

    def __init__(self, chat: ChatFormat, context_length: int) -> None:
        self.chat, self.context_length = chat, context_length
        self.ids = (*chat.encode("yes"), chat.end_id)

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        await asyncio.sleep(0)
        full = len(token_ids) + len(self.ids) > self.context_length
        ids = () if full else self.ids[: params.max_tokens]
        return Sample(ids, (-0.5,) * len(ids), 0, 0, "overflow" if full else "stop")


def sessions_of(count: int, context_length: int, metrics: ActorMetrics) -> list[Session]:
    """Makes attempts that the made-up policy plays."""
    folder = builtin_policy()
    chat = ChatFormat(read_tokenizer(folder, "the built-in policy"))
    policy = MadeUp(chat, context_length)
    reader, params = reader_of(chat, AgentConfig()), partial(SampleParams, 32)
    return [
        Session(policy, reader, metrics, Task(f"t{n}", "agent", n), params) for n in range(count)
    ]


async def _client(program: str, given: Any) -> asyncio.subprocess.Process:
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE, limit=1 << 26,
    )  # fmt: skip
    assert client.stdin is not None
    client.stdin.write(json.dumps(given).encode())
    client.stdin.close()
    return client


async def measure(requests: int, seed: int, longest: int, context_length: int) -> bool:
    """Runs the attack and prints what came of it. Returns whether all was right."""
    metrics, process = ActorMetrics(), psutil.Process()
    attempts = -(-requests // EACH)
    *hostile, _ = made = sessions_of(attempts + 1, context_length, metrics)
    neighbour = {"model": "policy", "messages": [{"role": "user", "content": "station 0 has drum"}]}
    sessions = {session.key: session for session in hostile}
    honest = _Renewed(made[-1], sessions)
    memory, waits, statuses = [process.memory_info().rss], list[float](), Counter[int]()
    async with WebApp(sessions, counts=metrics.agent).served("127.0.0.1", 0) as url:
        asking = await _client(HONEST, [url, honest.key, neighbour])
        attack = await _client(HOSTILE, [url, [s.key for s in hostile], seed, EACH, longest])
        assert asking.stdout is not None and attack.stdout is not None
        await asking.stdout.readline()
        ended = asyncio.create_task(attack.stdout.read())
        while not ended.done():
            status, seconds = json.loads(await asking.stdout.readline())
            waits.append(seconds)
            statuses[status] += 1
            memory.append(process.memory_info().rss)
            honest.renew()
        asking.kill()
        await asking.wait()
        seen, faults = json.loads(await ended)
    left = sum(s.open_requests + s.held for s in hostile)
    waits.sort()
    print(f"{sum(seen.values())} hostile requests: {seen}")
    print(
        f"{len(faults)} answers are neither a reply nor a named refusal", *faults[:20], sep="\n  "
    )
    middle = waits[len(waits) // 2]
    print(f"{len(waits)} honest calls: {dict(statuses)}, {waits[-1]:.2f} s at most, {middle:.3f} s")
    mib = [each / 2**20 for each in memory]
    print(f"memory: {mib[0]:.0f} MiB, at most {max(mib):.0f}, {mib[-1]:.0f} at the end")
    print(f"{left} still open; {metrics.render_s:.1f} s of rendering; {dict(metrics.agent)}")
    return not faults and waits[-1] <= MOST_WAIT_S and set(statuses) == {200} and not left


class _Renewed:
    """The honest agent's attempt, which is replaced before it has made too many calls."""

    def __init__(self, session: Session, sessions: dict[str, Session]) -> None:
        self.session, self.sessions, self.key = session, sessions, session.key
        sessions[self.key] = session

    def renew(self) -> None:
        old = self.session
        if len(old.tree.nodes) > 50:  # each call is a conversation of its own
            self.session = Session(old.policy, old.reader, old.metrics, old.task, old.params)
            self.sessions[self.key] = self.session


@click.command()
@click.option("--requests", default=10_000, show_default=True)
@click.option("--seed", default=0, show_default=True)
@click.option(
    "--longest", default=4 << 20, show_default=True, help="characters of the longest text"
)
@click.option("--context", default=4096, show_default=True, help="context length, tokens")
def main(requests: int, seed: int, longest: int, context: int) -> None:
    """Attacks the gateway with mutated requests."""
    sys.exit(0 if asyncio.run(measure(requests, seed, longest, context)) else 1)


if __name__ == "__main__":
    main()
