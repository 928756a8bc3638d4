"""What the writer keeps in memory, in the orders in which operations look at it."""
