"""The offline commands of `r3l-buffer`: ls, show, replay, export, verify, compact."""
