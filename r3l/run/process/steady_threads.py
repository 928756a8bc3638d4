"""Environment variables that make OpenMP and MKL always use the number of threads they are
given."""

STEADY_THREADS = {"OMP_DYNAMIC": "FALSE", "MKL_DYNAMIC": "FALSE"}
"""With dynamic threads, OpenMP uses fewer on a busy machine, and MKL no more than physical cores.
The last bits of a step depend on the number of threads. The libraries read these variables when
they are loaded."""
