"""ScienceWorld with a demonstrator and a teacher, for the experiment's small policy."""
