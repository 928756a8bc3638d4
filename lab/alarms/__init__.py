"""Real short runs in which an alarm of `r3l-launch doctor` must be given, and runs in which none
must."""
