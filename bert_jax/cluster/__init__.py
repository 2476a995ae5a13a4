"""The processes of a job: who is there, who is lost, who is started again, and with which exit code each ends."""
