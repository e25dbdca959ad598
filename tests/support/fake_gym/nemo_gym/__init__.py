"""A fake NeMo Gym: real processes and a real head, and servers that only sleep.

The real one needs a Python and packages of its own; it runs in the image's tests. The config
says what this one does wrong: see `cli/env.py` and `global_config.py`.
"""
