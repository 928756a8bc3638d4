"""TRL's side of `python -m benchmarks.peers`, run in an environment that has TRL: the same model,
prompts, reward and numbers of prompts, samples and tokens, by TRL's own GRPOTrainer.

    python benchmarks/peers_trl.py MODEL PROMPTS.json STEPS.jsonl STEPS PROMPTS BF16
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

SAMPLES, TOKENS, LEARNING_RATE = 8, 64, 1e-6


def rewards(completions: list[Any], **_: object) -> list[float]:
    """1 for a response with an odd number of characters."""
    return [float(len(one[-1]["content"]) % 2) for one in completions]


def main(model: str, prompts: Path, out: Path, steps: int, count: int, bf16: bool) -> None:
    """Train, and note the end of every step."""
    import pyarrow
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Noted(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, args: Any, state: Any, control: Any, **_: object) -> None:
            line = {"kind": "step", "step": state.global_step, "time": time.time()}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")

    asked = json.loads(prompts.read_text(encoding="utf-8"))
    table = pyarrow.Table.from_pylist([{"prompt": messages} for messages in asked])
    config = GRPOConfig(
        output_dir=str(out.parent / "trl"),
        per_device_train_batch_size=count * SAMPLES,
        num_generations=SAMPLES,
        max_completion_length=TOKENS,
        max_steps=steps,
        learning_rate=LEARNING_RATE,
        beta=0.0,
        temperature=1.0,
        use_cpu=True,
        bf16=bf16,
        gradient_checkpointing=False,
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    GRPOTrainer(
        model=model,
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset(table, fingerprint="prompts"),  # it would pickle itself for one
        callbacks=[Noted()],
    ).train()


if __name__ == "__main__":
    steps_, prompts_, bf16_ = map(int, sys.argv[4:])
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), steps_, prompts_, bool(bf16_))
