"""The paper's experiments, cell by cell, and their report."""
