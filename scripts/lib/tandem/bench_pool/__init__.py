"""The pool beside a plain aiohttp proxy, measured: `make bench-pool`."""
