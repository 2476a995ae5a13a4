"""Where a run's figures also go. One file, one ``Logger``, found by file name; see ``base.LoggerProtocol``."""
