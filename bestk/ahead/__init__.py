"""Evaluation ahead of time: what is known of nodes, and which of them will be popped soon."""
