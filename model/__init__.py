"""The network and the bundle file."""
