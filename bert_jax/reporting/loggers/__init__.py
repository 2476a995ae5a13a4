"""Loggers, which receive a run's figures in addition to its own log.

Each file defines one ``Logger`` (see ``base.LoggerProtocol``) and is found by the file's name.
"""
