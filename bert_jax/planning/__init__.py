"""Plans what a job needs and takes before it costs money: the train step is compiled for a machine that is not
there."""
