"""The commands of `hyperscene`, one module each."""
