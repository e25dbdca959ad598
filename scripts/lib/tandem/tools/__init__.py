"""`make tools`: everything pinned, built or unpacked into ./bin from package clients."""
