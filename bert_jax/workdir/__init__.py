"""The files in the folder of a run, their formats, and which process may write there."""
