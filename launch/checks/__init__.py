"""The rules that can refuse a run before any of its processes is started. Settings that contradict
each other are refused earlier, when they are read (r3l.config, r3l.settings)."""
