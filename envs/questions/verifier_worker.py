"""The worker process of `envs.questions.verifier`: compares answers. Each request and each reply is
one line.

    {"gold": "1/2", "answer": "0.5", "cpu_s": 3}  ─►  {"verdict": "correct"}

The kernel kills the worker if a comparison takes more than `cpu_s` of processor time or HANG_S of
real time. It also limits the worker's memory to MEMORY_BYTES.
"""

import json
import logging
import os
import resource
import signal
import sys

from envs.questions.math_answer import compare

MEMORY_BYTES = 2 << 30
HANG_S = 60
"""Limit of a comparison, seconds, if the parent has died. The parent's own limit is SILENT_S."""


def main() -> None:
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # a library's output must not look like a reply
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    logging.disable(logging.CRITICAL)
    for timer in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(timer, signal.SIG_DFL)  # the parent may ignore them
    compare("x", "2 x / 2")  # the first comparison imports libraries, which takes a second or more
    print(json.dumps({"verdict": "ready"}), file=answers)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(HANG_S)
        signal.setitimer(signal.ITIMER_PROF, request["cpu_s"])
        verdict = compare(request["gold"], request["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
        print(json.dumps({"verdict": verdict}), file=answers)
