"""`r3l-learner` whose every micro-batch takes half a second longer."""

import time
from typing import Any

from learner.cli import main
from learner.step.deepspeed_trainer import DeepSpeedTrainer

micro_batch = DeepSpeedTrainer._micro_batch


def slowly(trainer: DeepSpeedTrainer, *arguments: Any, **named: Any) -> dict[str, float]:
    time.sleep(0.5)
    return micro_batch(trainer, *arguments, **named)


if __name__ == "__main__":
    DeepSpeedTrainer._micro_batch = slowly
    main()
