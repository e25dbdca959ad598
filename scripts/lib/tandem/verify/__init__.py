"""`make verify`: checks that generated and pinned facts agree across the repository."""
