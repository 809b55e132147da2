"""Shapes the model's distributions, node by node: penalties, bans, truncation, users' processors.

`steps` are vectorised over a whole group; `foreign` calls objects written for `generate`.
"""
