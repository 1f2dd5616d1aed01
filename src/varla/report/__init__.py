"""Tables and plots, drawn from the records of runs alone."""
