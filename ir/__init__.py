"""Types, meshes, layouts, graphs and their text form. Knows no operator."""
