"""The contents of a run's folder, and files of one JSON object a line."""
