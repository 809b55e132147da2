"""vLLM as a backend: what a search asks of its engines, and how much of its cache is reused."""
