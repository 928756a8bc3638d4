"""What starts the processes of a plan: this machine, SLURM, or Ray."""
