"""A small real policy-gradient trainer: vLLM samples, torch learns, HTTP refits."""
