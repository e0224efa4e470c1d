"""`application` for a production WSGI server: ONE process with many threads, since the state table is in memory."""

import os

from django.core.wsgi import get_wsgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "SimpleStateServer.settings")

application = get_wsgi_application()
