"""Runs several processes as one job: what must be equal, how a lost process is noticed, restarts, signals, exit codes.

Other packages call ``distributed``. ``processes`` finds the number of this process; ``job`` waits for all processes and
then watches them; ``store`` holds what they tell each other; ``exit_codes`` says what each code means.
"""
