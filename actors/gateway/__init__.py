"""The gateway: serves the policy to third-party agents over HTTP."""
