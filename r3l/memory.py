"""Memory that is given back when it is freed.

glibc gives a freed block back to the system at once only if it was larger than a threshold,
which it raises up to 32 MiB as large blocks are freed. Tensors of ever other sizes then leave
holes in the heap, and a process grows for as long as it runs. A threshold that is set stays. Each
large block is then made of fresh pages, which costs more than filling it; with huge ones, where
the system has them for the asking, far less.
"""

STEADY_MEMORY = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
}
"""Environment of a process that makes and frees tensors without end; read when it starts."""
