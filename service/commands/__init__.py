"""The commands of `hyperscene`, a module each: its options, and what it does with them."""
