"""Measurements: one module or package a command, results as JSON under results/."""
