"""The control: who is a member, how it does, and what Envoy is told of it."""
