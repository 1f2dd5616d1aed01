"""What every run has, whatever it trains: a folder (`folder`), settings (`settings`), an end (`outcomes`), a machine
(`environment`).

`varla.training` and `varla.lm` both build on this. Nothing is imported here: `outcomes` and `writing` load without
PyTorch.
"""
