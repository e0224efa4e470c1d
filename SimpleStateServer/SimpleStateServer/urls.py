"""Paths of the state server."""

from django.urls import path
from server import views

urlpatterns = [
    path("message/", views.call),
    # Published endpoints.
    path("init/", views.call),
    path("apply/", views.call),
    path("reset/", views.call),
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
