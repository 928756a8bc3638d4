"""A vLLM engine that takes the updates, and the pause that its running requests see."""

import asyncio
import time
from bisect import bisect
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.weights.publisher import Metrics
from benchmarks.weights.updates import Updates
from r3l.run.process.memory import freeze_heap

PAUSES, LONG = 10, 60  # updates, and tokens of the requests that run at the time


async def measure_pauses(updates: Updates) -> None:
    """Print the cost of PAUSES updates, each prepared before, to requests that run at the time."""
    runs: list[Metrics] = []
    usual: list[float] = []
    for _ in range(PAUSES):
        await updates.step()
        arrivals: list[list[float]] = [[] for _ in range(4)]
        requests = [
            asyncio.create_task(_generate(updates.policy, number, times))
            for number, times in enumerate(arrivals)
        ]
        while min(len(times) for times in arrivals) < LONG // 5:
            await asyncio.sleep(0.01)
        usual += np.diff(arrivals[0][-10:]).tolist()
        metrics = await updates.update()
        loaded = metrics["loaded_at"]
        assert not any(task.done() for task in requests), "a request ended before the update did"
        assert await asyncio.gather(*requests) == [LONG] * 4, "a request was lost or cut"
        before = [times[bisect(times, loaded) - 1] for times in arrivals]
        after = [times[bisect(times, loaded)] for times in arrivals]
        stopped, next_token = loaded - min(before), max(after) - loaded
        runs.append({"load": metrics["load_s"], "stopped": stopped, "next": next_token})
    loads, following = [run["load"] for run in runs], [run["next"] for run in runs]
    beyond = [run["stopped"] - run["load"] for run in runs]
    print(
        f"{len(runs)} updates under running requests, a load takes {median(loads):.3f} s "
        f"({min(loads):.3f} to {max(loads):.3f}): a request waits {1e3 * median(beyond):+.0f} ms "
        f"longer (at most {1e3 * max(beyond):+.0f}); its next token then takes "
        f"{1e3 * median(following):.0f} ms (at most {1e3 * max(following):.0f}), others "
        f"{1e3 * median(usual):.0f} ms (at most {1e3 * max(usual):.0f}); none lost, none restarted"
    )


async def _generate(policy: Any, number: int, arrivals: list[float]) -> int:
    """Generate LONG tokens and note when each arrives; returns how many did."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    params = SamplingParams(
        max_tokens=LONG, ignore_eos=True, detokenize=False, output_kind=RequestOutputKind.DELTA
    )
    tokens, prompt = 0, policy.prompt([5 + number] * 20)
    async for output in policy.engine.generate(prompt, params, f"p{time.monotonic()}{number}"):
        arrivals.append(time.monotonic())
        tokens += len(output.outputs[0].token_ids)
    return tokens


class NoEngine:
    """Takes weights and does nothing with them."""

    async def load(self, path: str, manifest: Any) -> float:
        """Seconds of the load: none."""
        return 0.0

    def close(self) -> None:
        """Nothing to end."""


def start_engine(folder: Path) -> Any:
    """The model in a vLLM engine."""
    from actors.engine import VLLMPolicy
    from r3l.run.settings.actor import ActorConfig

    cache = {"kv_cache_memory_bytes": 1 << 28}
    config = ActorConfig(dtype="bfloat16", max_model_len=1024, engine=cache)
    policy = VLLMPolicy.start(folder, config)
    freeze_heap()  # as an actor does
    return policy
