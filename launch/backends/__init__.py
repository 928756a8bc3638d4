"""Starts the processes of a plan: on this machine, with SLURM, or with Ray."""
