"""Products: what agencies deliver, recognised and described by one module for each family of sensors."""
