"""The life of a group in the store: every operation that changes it or picks it for a draw."""
