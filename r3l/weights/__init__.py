"""Weight sets as chunks, and lossless patches between versions of them."""
