"""Research programs: what docs/results says, measured; lab/README.md lists them."""
