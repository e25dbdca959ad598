"""The standalone Gym server of a disaggregated run, and the driver that is its twin.

Nothing is imported here: the entry points install their signal handlers first.
"""
