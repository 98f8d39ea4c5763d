"""What is done with a finished map: samples, accuracy and areas, reports, vectors, zones, comparison."""
