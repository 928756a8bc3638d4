"""Pages that are sent: a run or an evaluation as one HTML file, without a script or a network."""
