"""Runs several processes as one job: what must be equal, how a lost process is noticed, restarts, signals, exit codes.

Other packages call ``distributed``. ``processes`` finds the number of this process, ``arrival`` waits for all processes,
``store`` holds what they tell each other, ``job`` watches them afterwards, and ``exit_codes`` says what each code means.
"""
