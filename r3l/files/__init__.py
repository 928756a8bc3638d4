"""Files on disk: how they are written (whole or not at all), checked and read."""
