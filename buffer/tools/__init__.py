"""The offline commands of `r3l-buffer`: list, show, replay, verify, export."""
