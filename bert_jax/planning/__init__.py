"""Plans what a job needs and costs before it is run: compiles the train step for a machine that need not be present.

``topologies`` knows the machines and ``chips`` their peaks, ``compile`` compiles, ``costs`` counts work, ``prediction``
makes seconds of it, and ``plan`` puts memory, time and price together; README.md explains the steps.
"""
