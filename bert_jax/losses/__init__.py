"""Losses: functions of outputs and batch that return sums, and the lessons of a student from its teacher."""
