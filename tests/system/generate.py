"""Run by test_run: what a vLLM engine makes of a model folder.

generate.py FOLDER…    prints a JSON line for each: its greedy tokens and their log-probabilities
"""

import json
import os
import sys

from actors.engine import CPU_ENVIRONMENT, EAGER

PROMPT = list(range(300, 340))


def generate(folder: str) -> dict[str, list[float]]:
    from vllm import LLM, SamplingParams

    engine = LLM(
        folder,
        dtype="float32",
        enforce_eager=True,
        max_model_len=256,
        kv_cache_memory_bytes=64 << 20,
    )
    params = SamplingParams(max_tokens=16, temperature=0.0, logprobs=0, ignore_eos=True)
    [output] = engine.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)
    reply = output.outputs[0]
    logprobs = [p[t].logprob for t, p in zip(reply.token_ids, reply.logprobs, strict=True)]
    return {"tokens": list(reply.token_ids), "logprobs": logprobs, "text": reply.text}


if __name__ == "__main__":
    os.environ |= CPU_ENVIRONMENT | EAGER
    for given in sys.argv[1:]:
        print(json.dumps(generate(given)), flush=True)
