"""Django's part in the paths: server/views.py knows them all."""

from django.urls import re_path
from server.http import view

urlpatterns = [re_path("", view)]
