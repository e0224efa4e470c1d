"""Paths of the state server."""

from django.urls import path
from server import views
from server.http import posting

urlpatterns = [
    path("message/", posting),
    # Published endpoints.
    path("init/", posting),
    path("apply/", posting),
    path("reset/", posting),
    path("", views.index),
    path("status.json", views.status_json),
    path("jobs/<str:job>/", views.index),
    path("jobs/<str:job>/status.json", views.status_json),
    path("metrics", views.metrics_text),
    path("healthz", views.healthz),
]

handler400 = "server.http.bad_request"
handler404 = "server.http.not_found"
handler500 = "server.http.internal_error"
