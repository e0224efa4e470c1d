"""A worker's connection to the state server, which coordinates ESync's rounds and shows the status page.

A trainer has a client (client.py), and asks through it or beside the training (queries.py); its messages go
over HTTP (http.py, published.py) or to a server in this process (trainer/simulation/in_process.py).
"""
