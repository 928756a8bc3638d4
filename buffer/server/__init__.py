"""The service process: one thread for the socket, one that writes, one that reads."""
