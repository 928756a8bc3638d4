"""The gateway: an HTTP server through which third-party agents call the policy."""
