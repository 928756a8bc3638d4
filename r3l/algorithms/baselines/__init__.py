"""The algorithms that R³L is compared with; GRPO, which they share, is a level up."""
