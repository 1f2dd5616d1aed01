"""Experiments made of tasks, models and training. Each is one module."""
