"""Shows a run: progress line, log, status, report, loggers and alarms. ``observer`` passes the figures on to them."""
