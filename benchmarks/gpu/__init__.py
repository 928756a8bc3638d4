"""The learner, an engine and a whole run on a GPU."""
