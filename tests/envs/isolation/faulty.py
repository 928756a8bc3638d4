"""An environment that does what the policy says: crashes, hangs, eats memory."""

import os
import subprocess
import sys
import time
from typing import Any

from r3l.rollout.env_interface import EnvSpec

DAEMON = ["sh", "-c", "setsid sleep 3600 >/dev/null 2>&1 & echo $!"]
FAULTY = f"{__file__}:Faulty"
"""The environment's name."""


class Faulty:
    """Answers each action, or falls victim to it; `hold` MiB are kept by every instance."""

    spec = EnvSpec("faulty", "Behave.", max_steps=5, sessions=4)

    def __init__(self, at_start: str = "") -> None:
        self.said: list[str] = []
        if at_start:
            self.step(at_start)

    def reset(
        self, *, seed: int, options: dict[str, Any] | None = None
    ) -> tuple[str, dict[str, Any]]:
        self.said = []
        return f"task {seed} in {os.getpid()}", {}

    def step(self, action: str) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        print("noise on standard output")
        self.said.append(action)
        match action:
            case "crash":
                os.abort()
            case "exit":
                sys.exit(3)
            case "hang":
                time.sleep(3600)
            case "wait":
                time.sleep(0.5)
            case "eat":
                eaten = [bytearray(64 << 20) for _ in range(1000)]
                return str(len(eaten)), 0.0, False, False, {}
            case "breed":
                os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "3600")
                time.sleep(3600)
            case "fork" | "fork and raise" | "fork and exit":
                if (child := os.fork()) == 0:
                    if action == "fork and raise":
                        raise KeyError("in the child")
                    if action == "fork and exit":
                        sys.exit(3)
                    return "the child's", 9.0, True, False, {}
                os.waitpid(child, 0)
            case "daemon":  # helpers that leave the worker's session, and its family
                helper = subprocess.Popen(["sleep", "3600"], start_new_session=True)
                daemon = subprocess.check_output(DAEMON, text=True).strip()
                return f"{helper.pid} {daemon}", 0.0, False, False, {}
            case "raise":
                raise KeyError("no such door")
            case "say \\ud800":
                return "\ud800", 0.0, False, False, {}
            case "stumble":
                return "went on", 0.0, False, False, {"fault": "stumbled"}
            case "earn":
                return "earned", 0.5, False, False, {"rewards": {"half": 0.5, "object": object()}}
            case "array":
                return [1, 2], 0.0, False, False, {}
        return f"step {len(self.said)}", 0.0, action == "end", False, {"object": object()}

    def snapshot(self) -> bytes:
        return " ".join(self.said).encode()

    def restore(self, state: bytes) -> None:
        self.said = state.decode().split()

    def feedback(self) -> str:
        return f"{len(self.said)} said"

    def close(self) -> None:
        pass
