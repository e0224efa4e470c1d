"""The one event loop of `manage.py serve`: bytes from connections become requests, and answers go back.

Everything is answered in the loop, since nothing that answers ever waits. So a connection that sends half a request, or
nothing, costs its memory alone; and that is bounded (connections.py).
"""
