"""R³L, what every algorithm is made of, and other published algorithms; one file per algorithm."""
