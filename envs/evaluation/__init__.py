"""The metrics and files of an evaluation, the same during a run and for `r3l-eval`."""
