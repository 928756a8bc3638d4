"""Changes and draws the groups in the store."""
