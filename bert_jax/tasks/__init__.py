"""Downstream tasks, one file each, their metrics, and the files that benchmarks ask for."""
