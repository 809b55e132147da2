"""Backends for models of the transformers library."""
