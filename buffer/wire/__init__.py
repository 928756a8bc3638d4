"""What travels between clients and the service: messages, frames, keys, access."""
