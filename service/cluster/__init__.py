"""Several machines: workers of a Dask cluster compute the strips, and the service does everything else."""
