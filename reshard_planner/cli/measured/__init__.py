"""What `topology measure` makes of a measurement: a cluster file, findings, and a table."""
