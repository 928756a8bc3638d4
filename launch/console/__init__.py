"""What r3l-launch tells its user while a run goes on."""
