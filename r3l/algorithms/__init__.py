"""R³L, other published algorithms (one file each), and the parts that all algorithms share."""
