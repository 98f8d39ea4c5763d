"""Several machines: strips are answered by workers of a Dask cluster, and everything else stays where it is."""
