"""Manages the processes of a job: how they meet, how a lost process is noticed, restarts, signals and exit codes."""
