"""The metrics by family, one file each; `registry` builds them and names those left out."""
