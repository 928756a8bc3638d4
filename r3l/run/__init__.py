"""What the services of a run share: its settings, its folder, its processes.

The core never imports it."""
