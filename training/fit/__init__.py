"""Fitting: recipes, label propagation, the network, calibration and export."""
