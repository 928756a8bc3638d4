"""What the writer keeps in memory, sorted in the orders that operations need."""
