"""Plays the attempts of an evaluation and prints its results."""
