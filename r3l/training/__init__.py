"""Trains in this process with plain PyTorch: rows of an algorithm to new weights, and a policy that
samples with them. Only this folder of r3l needs torch and transformers; other modules import it
only when they use it."""

import os
import sys

if "torch" not in sys.modules:
    # OpenMP reads this once. Waiting threads then sleep: on cores that others use too, spinning
    # costs several times as much.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
