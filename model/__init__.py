"""The network and the bundle; imports nothing, so that serving never loads torch."""
