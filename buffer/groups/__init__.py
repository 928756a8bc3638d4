"""The life of a group in the store: all operations that change a group or draw it."""
