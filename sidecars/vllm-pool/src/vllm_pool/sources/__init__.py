"""Where members come from, besides the API."""
