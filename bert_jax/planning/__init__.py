"""Plans what a job needs and costs before it is run: compiles the train step for a machine that need not be present."""
