"""Task models of bestk: folders beside this file, which `bestk.load` finds by their names."""
