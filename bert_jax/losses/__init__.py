"""Losses: functions of a model's outputs and a batch that return sums, and what a student learns from a teacher."""
