"""An HTTP server for searches: an engine that runs them together, an API, a page."""
