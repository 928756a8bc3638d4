"""`r3l-learner` whose last rank hangs in the second step, and misses the heartbeat after 2 s."""

import time

from learner import watchdog
from learner.cli import main
from learner.step.deepspeed_trainer import DeepSpeedTrainer

apply = DeepSpeedTrainer._apply


def hang() -> None:
    assert watchdog._watchdog is not None
    watchdog._watchdog.limit_s = 2.0
    time.sleep(600)


def apply_or_hang(trainer: DeepSpeedTrainer) -> tuple[bool, float]:
    if trainer.rank == trainer.world - 1 and trainer.engine.global_steps == 1:
        hang()
    return apply(trainer)


if __name__ == "__main__":
    DeepSpeedTrainer._apply = apply_or_hang
    main()
