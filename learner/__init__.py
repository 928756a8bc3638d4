"""The learner: draws groups, trains, commits, publishes weights."""
