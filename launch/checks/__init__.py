"""The rules that can refuse a run before any of its processes is started."""
