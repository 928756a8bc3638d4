"""How settings are read and checked, and how errors explain a wrong one."""
