"""Published algorithms that R³L is compared with; one file each."""
