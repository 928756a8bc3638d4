"""`r3l-learner` whose every micro-batch takes half a second longer, and is told in the log."""

import sys
import time
from typing import Any

from learner.cli import main
from learner.step.deepspeed_trainer import DeepSpeedTrainer

micro_batch = DeepSpeedTrainer._micro_batch


def slowly(trainer: DeepSpeedTrainer, *arguments: Any, **named: Any) -> dict[str, float]:
    print("a slow micro-batch begins", file=sys.stderr, flush=True)
    time.sleep(0.5)
    return micro_batch(trainer, *arguments, **named)


if __name__ == "__main__":
    DeepSpeedTrainer._micro_batch = slowly
    main()
