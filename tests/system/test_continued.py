"""Actors are killed while they play attempts of many steps: other actors continue the attempts.

`make soak-actors` does so for minutes. R3L_SOAK_PROGRESS_S=1e9 shows what a kill costs if no
progress is put, R3L_SOAK_ATTEMPTS=1 what it costs with one attempt at a time in each actor. Add
`-o faulthandler_timeout=0` for more than 14 minutes.
"""

import json
import os
import time
import zlib
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from r3l.records import Group
from r3l.run.config import RunConfig
from tests.system import long_walk
from tests.system.test_actor import Job, until
from tests.system.test_actor_soak import Learner

MINUTES = float(os.environ.get("R3L_SOAK_MINUTES", "0"))
KILL_S = float(os.environ.get("R3L_SOAK_KILL_S", "60" if MINUTES else "0"))
RESPONSE_S = os.environ.get("R3L_SOAK_RESPONSE_S", "1.2" if MINUTES else "0.2")
PROGRESS_S = float(os.environ.get("R3L_SOAK_PROGRESS_S", "0"))  # every response is put
SLOW = "tests.system.slow_actor"
ATTEMPTS = int(os.environ.get("R3L_SOAK_ATTEMPTS", "4"))  # at the same time, in each of two actors

pytestmark = [pytest.mark.system, pytest.mark.timeout(60 * MINUTES + 900)]

AGENT = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "actors" / "agents")!r})
from stdlib_agent import ask

messages = [{{"role": "user", "content": "begin"}}]
for step in range({long_walk.STEPS}):
    reply = ask(messages)
    messages += [reply, {{"role": "user", "content": "after " + reply["content"]}}]
print({{"reward": 1.0}}["reward"])
"""


def settings_of(world: str, folder: Path) -> list[str]:
    if world == "walk":
        env = [f"env.name={Path(long_walk.__file__)}:Walk", "env.options={}"]
    else:
        (folder / "agent.py").write_text(AGENT)
        tasks = [{"id": n, "split": "train"} for n in range(256)]
        (folder / "tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)))
        options = {"command": f"python {folder}/agent.py", "tasks": f"{folder}/tasks.jsonl"}
        env = ["env.name=agent", f"env.options={json.dumps(options)}"]
    plan = f"algorithm={{name: raft, group_size: {ATTEMPTS}}}"
    actor = [f"actor.concurrent_requests={ATTEMPTS}", f"actor.progress_s={PROGRESS_S}"]
    return [*env, plan, *actor]


def counted(job: Job) -> Counter[str]:
    """The sums of what the actors report."""
    return sum(map(Counter, job.client.stats().actors.values()), Counter[str]())


@pytest.mark.parametrize("world", ["walk", "agent"])
def test_a_killed_actor_costs_each_attempt_the_response_under_way(
    world: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = tmp_path / "calls"
    monkeypatch.setenv("R3L_CALLS", str(calls))
    monkeypatch.setenv("R3L_RESPONSE_S", RESPONSE_S)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    job = Job(tmp_path, *settings_of(world, tmp_path), lease_s=10)
    try:
        learner, kills = Learner(job, count=1), 0
        actors = {name: job.join(name, SLOW) for name in ("actor-0", "actor-1")}
        until(  # a dozen replies of each, in attempts of fifty
            lambda: all(job.report(name).get("generated_tokens", 0) > 200 for name in actors),
            "attempts of both are under way",
        )
        end = time.monotonic() + 60 * MINUTES
        while not kills or time.monotonic() < end:
            time.sleep(KILL_S)
            victim = actors.pop(next(iter(actors)))  # the oldest
            job.kill(victim)
            kills += 1
            actors[f"actor-{kills + 1}"] = job.join(f"actor-{kills + 1}", SLOW)
        until(lambda: len(learner.trained) > 1, "groups are trained")
        until(lambda: PROGRESS_S or counted(job)["partial_continued"], "an attempt is continued")
        trained = learner.stop()
        job.kill(*actors.values())
        stats, counts, groups = job.client.stats(), counted(job), job.stored()
    finally:
        job.close()
    again, sampled, lost = losses(groups, calls.read_text(), RunConfig().seed)
    print(f"{kills} kills, {trained} groups trained, {sampled} tokens sampled")
    print(f"{1 - lost / sampled:.3f} of them trained or still wanted, {again} responses again")
    print({name: n for name, n in counts.items() if name.startswith("partial")})
    assert stats.drops == stats.slot_drops == stats.partial_dropped == {}
    if PROGRESS_S == 0:
        assert counts["partial_continued"] > 0 and not counts["partial_dropped"]
        # The response under way, also of an actor that a busy machine kept from renewing.
        assert again <= ATTEMPTS * max(kills, stats.leases_expired)
        assert not MINUTES or 1 - lost / sampled >= 0.95


def losses(groups: list[Group], log: str, seed: int) -> tuple[int, int, int]:
    """Returns the responses that were sampled again, the tokens sampled, and those of them that
    are in no attempt, finished or under way. Fails unless attempts have what was sampled last."""
    tokens = defaultdict[int, list[int]](list)
    for line in log.splitlines():
        place, number = map(int, line.split())
        tokens[place].append(number)
    sampled = sum(map(sum, tokens.values()))
    lost = sum(sum(numbers[:-1]) for numbers in tokens.values())
    for group in groups:
        begins = zlib.crc32(f"{seed}/{group.group_id}".encode())
        for result in group.results:
            attempt = result.trajectory
            assert attempt is not None and attempt.num_steps == long_walk.STEPS
            places = [(begins, "play", result.slot, k) for k in range(attempt.num_steps)]
            kept = [tokens[zlib.crc32(repr(place).encode())][-1] for place in places]
            assert kept == (attempt.step_spans[:, 1] - attempt.step_spans[:, 0]).tolist()
    return sum(len(numbers) - 1 for numbers in tokens.values()), sampled, lost
