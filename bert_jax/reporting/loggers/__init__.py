"""Loggers, which also receive a run's figures. Each file has one ``Logger``, found by its name
(``base.LoggerProtocol``)."""
