"""Questions with one answer: mathematics, Countdown, arithmetic, reasoning-gym."""
