"""Training: from a labelled scene to a bundle."""
