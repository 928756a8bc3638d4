"""Published algorithms that R³L is compared with, in one file each."""
