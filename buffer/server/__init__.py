"""The service process: a socket thread, a writer thread and a reader thread."""
