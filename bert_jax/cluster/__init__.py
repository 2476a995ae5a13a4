"""Runs several processes as one job: what must be equal, how a lost process is noticed, restarts, signals, exit codes.

Other packages call ``distributed``. ``processes`` finds the number of this process, ``arrival`` compares versions, code
and recipe of all processes at the start, ``job`` watches them afterwards, and ``exit_codes`` says what each code means.
"""
