"""Published algorithms for comparison with R³L, in one file each."""
