"""Weight sets as chunks, and lossless patches between their versions."""
