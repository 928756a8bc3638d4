"""The metrics and files of evaluations. Runs and `r3l-eval` share them."""
