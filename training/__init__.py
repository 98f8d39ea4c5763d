"""From a labelled scene to a bundle."""
