"""Best-k search on vLLM: the user's engine, asked by prefixes (`engine.py`), and its cache."""
