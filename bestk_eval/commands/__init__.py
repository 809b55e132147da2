"""The commands `bestk eval`, `bestk report` and `bestk bench`; no logic in them."""
