"""`r3l-actor` whose first engine returns NaN after some responses."""

import math
from typing import Any

from actors.cli import main
from actors.engine import VLLMPolicy

SOUND = 1200  # responses of the first engine before it becomes sick; it plays 96 attempts at a time

made: list[VLLMPolicy] = []
sound = VLLMPolicy._generate


async def generate(policy: VLLMPolicy, *arguments: Any) -> Any:
    """What the engine returns; from the first engine with NaN after a while."""
    output = await sound(policy, *arguments)
    if policy not in made:
        made.append(policy)
    responses = next(policy._request_ids)
    if policy is made[0] and responses > SOUND:
        for choices in output.outputs[0].logprobs:
            for choice in choices.values():
                choice.logprob = math.nan
    return output


if __name__ == "__main__":
    VLLMPolicy._generate = generate  # type: ignore[method-assign]
    main()
