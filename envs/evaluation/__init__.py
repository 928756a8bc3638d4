"""What an evaluation measures, keeps and reports; the same during a run and of `r3l-eval`."""
