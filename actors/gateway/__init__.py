"""The gateway: an HTTP server through which agents that somebody else wrote call the policy."""
