"""Mapping as a library: scene in, rasters out; no server needed."""
