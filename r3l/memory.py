"""Memory that is given back when it is freed.

glibc gives a freed block back to the system at once only if it was larger than a threshold,
which it raises up to 32 MiB as large blocks are freed. Tensors of ever other sizes then leave
holes in the heap, and a process grows for as long as it runs. A threshold that is set stays.
"""

STEADY_MEMORY = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Environment of a process that makes and frees tensors without end; read when it starts."""
