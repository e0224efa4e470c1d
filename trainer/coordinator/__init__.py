"""A worker's way to the state server, which coordinates the job: ESync's rounds, and what the status page shows.

A trainer has a client (client.py), and asks through it or beside the training (queries.py). Messages go over HTTP
(http.py) or straight to the server's own handlers in this process (in_process.py), which the client cannot tell apart.
"""
