"""Random damage and odd arguments, by the thousand: everything is refused by name, or changes nothing.

python -m tests.fuzz --tries 1000 --seed 0              # of every kind
python -m tests.fuzz --only session --first 412 --tries 1    # one try again

Every try has a seed of its own, made of its kind, `--seed` and its number.
"""
