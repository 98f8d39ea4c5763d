"""The service: mapping, jobs, HTTP and the command line."""
