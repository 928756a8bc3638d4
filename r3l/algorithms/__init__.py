"""R³L, the parts that all algorithms share, and other published algorithms in one file each."""
