"""What is measured of a step: the age of its data, the gradients of its parts, its machine."""
