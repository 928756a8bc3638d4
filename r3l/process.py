"""Memory that is given back when it is freed, and collections that stop nobody.

glibc gives a freed block back to the system at once only if it was larger than a threshold,
which it raises up to 32 MiB as large blocks are freed. Tensors of ever other sizes then leave
holes in the heap, and a process grows for as long as it runs. A threshold that is set stays. Each
large block is then made of fresh pages, which costs more than filling it; with huge ones, where
the system has them for the asking, far less.

A full garbage collection looks at every object of the process. With torch and vLLM imported that
takes a quarter of a second, in which an actor sends no request and a learner makes no step.
"""

import gc

STEADY_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Environment of a process that makes and frees tensors without end; read when it starts."""


def freeze_heap() -> None:
    """Leave out of garbage collections what is alive now: for a process that has started, before
    its work begins. What was left out before and is garbage now is collected first."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
