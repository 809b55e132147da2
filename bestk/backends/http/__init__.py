"""Models behind HTTP: requests that survive trouble, and the dialects of servers."""
