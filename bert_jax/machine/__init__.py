"""Whether machines can train: what this machine has, and whether the hosts of a job agree."""
