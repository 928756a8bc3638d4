"""How settings are read and refused, and those of sampling; the whole model is r3l.config."""
