"""R³L, other published algorithms (one file each), and parts shared by all algorithms."""
