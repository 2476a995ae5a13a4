"""What a job will need and take, before it costs: the train step compiled for a machine that is not there."""
