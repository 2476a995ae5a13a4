"""Optimizers, one file each. A file defines ``Optimizer``, a frozen dataclass and a ``base.Rule``."""
