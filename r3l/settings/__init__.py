"""How settings are read and checked, and what the user is told of a wrong one."""
