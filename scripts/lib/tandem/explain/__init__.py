"""What KAI will make of a run, said before it is applied: its gangs, its traps, its fit.

Pure: rendered objects in, a report out. `inputs` and `__main__` alone read files, call
kubectl and print.
"""
