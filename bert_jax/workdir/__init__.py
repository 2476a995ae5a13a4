"""What lies in the folder of a run, and which process may write there."""
