"""Task folders in Harbor's format, played by agents."""
