"""r3l-launch: plans a run, starts its processes, watches them, ends them."""

from r3l.files.own_packages import claim

claim()
