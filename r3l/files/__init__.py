"""Files on disk: how they are written (whole or not at all), and the contents of a run's folder."""
