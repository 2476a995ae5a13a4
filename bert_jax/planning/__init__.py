"""Before a job costs: what it will need and take (``plan``), and whether its hosts fit together (``preflight``)."""
