"""Data: from files to a labelled scene and its splits."""
