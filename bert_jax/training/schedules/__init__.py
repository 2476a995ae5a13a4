"""Learning-rate schedules, one file each. A file defines ``Schedule``, a frozen dataclass and a ``base.Warmup``."""
