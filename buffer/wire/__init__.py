"""Messages between clients and the service: operations, frames, keys, access."""
