"""Pictures of a search: one graph format, and renderers that draw it as DOT, SVG and HTML."""
