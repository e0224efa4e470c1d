"""Paths of the state server."""

from django.urls import path
from server import views

urlpatterns = [
    path("message/", views.message),
    # Published endpoints.
    path("init/", views.init),
    path("apply/", views.apply),
    path("reset/", views.reset),
    path("", views.index),
    path("status.json", views.status_json),
    path("metrics", views.metrics_text),
    path("healthz", views.healthz),
]

handler400 = "server.http.bad_request"
handler404 = "server.http.not_found"
handler500 = "server.http.internal_error"
