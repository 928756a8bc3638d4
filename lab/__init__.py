"""Research programs: what docs/results says, measured. Nothing imports them but their tests."""
