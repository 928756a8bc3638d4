"""Third-party agents as an environment: their tasks, processes and graders."""
