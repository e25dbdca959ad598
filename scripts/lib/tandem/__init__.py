"""Programs behind the Makefile: tools, images, bundle, cluster, render, run."""
