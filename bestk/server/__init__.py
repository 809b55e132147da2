"""An HTTP server for searches: a loop that runs them together, an API, a page."""
