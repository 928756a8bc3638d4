"""`r3l-actor` with an engine that guesses slowly and writes every response's seed and number of
tokens to a file. Seeds name the place of a response in its group."""

import asyncio
import os
import random
from collections.abc import Sequence

import actors.engine
from actors.cli import main
from r3l.rollout.policy_interface import Sample, SampleParams
from tests.system.simulated_actor import SimulatedEngine

SECONDS = float(os.environ["R3L_RESPONSE_S"])
CALLS = os.open(os.environ["R3L_CALLS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class SlowEngine(SimulatedEngine):
    """Answers with a random number of words. A response counts as sampled when it begins."""

    async def sample(self, token_ids: Sequence[int], params: SampleParams) -> Sample:
        words = " ".join(random.choices(("heads", "tails"), k=random.randint(2, 6)))
        ids = self.chat.tokenizer.encode(words, add_special_tokens=False)
        tokens = (*ids[: params.max_tokens - 1], self.chat.end_id)
        os.write(CALLS, f"{params.seed} {len(tokens)}\n".encode())
        self.metrics.requests_running += 1
        await asyncio.sleep(SECONDS * random.uniform(0.5, 1.5))
        self.metrics.requests_running -= 1
        self.metrics.generated_tokens += len(tokens)
        return Sample(tokens, (-0.7,) * len(tokens), self.version, self.version, "stop")


if __name__ == "__main__":
    actors.engine.VLLMPolicy = SlowEngine  # type: ignore[misc]
    main()
