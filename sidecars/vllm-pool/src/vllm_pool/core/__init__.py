"""The decisions: values in, values out; no clock, no file and no socket of their own."""
