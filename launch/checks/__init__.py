"""The rules that refuse a run before anything of it is started."""
