"""Measurements: one module a command, results as JSON under results/."""
