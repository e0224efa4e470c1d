"""A stand-in of the published state server, for comparisons of speed: its three endpoints under Django's runserver.

    python tests/helpers/published_program.py runserver --noreload 127.0.0.1:10010

Written from the published interface, not from its code: form-encoded POSTs, a list of records that any thread changes,
the slowest device searched for at each question, DEBUG, and a line of log for each request. Of the middlewares of
`django-admin startproject` it has only the one for an answer's length, so it is no slower than the published one.
"""

import sys
import time
from typing import Any

import django
from django.conf import settings
from django.core.management import execute_from_command_line
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path

settings.configure(
    DEBUG=True,
    SECRET_KEY="a benchmark's",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.common.CommonMiddleware"],
    USE_TZ=True,
)

CAPABILITY, FINISHED, READY, ROUND = 2, 3, 4, 5  # columns of a record; before them the rank and its local iterations
state: dict[str, Any] = {"num_workers": 0, "t": 1, "epsilon": 0.5, "records": []}


def init(request: HttpRequest) -> HttpResponse:
    """Starts a job: round 1 and an empty record for each rank."""
    state["num_workers"] = int(request.POST.get("num_workers", 6))
    state["epsilon"] = float(request.POST.get("epsilon", 0.5))
    state["t"] = 1
    state["records"] = [[rank, 0, 0.0, 0.0, False, 1] for rank in range(state["num_workers"])]
    return HttpResponse()


def apply(request: HttpRequest) -> HttpResponse:
    """A worker has done k local steps in this round: whether it aggregates now."""
    rank, steps = int(request.POST["r"]), int(request.POST["k"])
    capability, finished = float(request.POST["c"]), float(request.POST["te"])
    record = state["records"][rank]
    record[1:4] = steps, capability, finished
    slowest = max(state["records"], key=lambda row: row[CAPABILITY])
    if steps == 0 or slowest[ROUND] < state["t"]:
        ready = False
    else:
        rest = slowest[CAPABILITY] - (time.time() - slowest[FINISHED])
        ready = record is slowest or slowest[READY] or capability + state["epsilon"] > rest
    record[READY] = bool(ready)
    return JsonResponse({"ready": int(ready)})


def reset(request: HttpRequest) -> HttpResponse:
    """A worker has pulled, and is in round t."""
    record = state["records"][int(request.POST["r"])]
    record[FINISHED], record[READY], record[ROUND] = float(request.POST["te"]), False, int(request.POST["t"])
    state["t"] = max(state["t"], record[ROUND])
    return HttpResponse()


def index(request: HttpRequest) -> HttpResponse:
    """The state."""
    return JsonResponse(state)


urlpatterns = [path("init/", init), path("apply/", apply), path("reset/", reset), path("", index)]

if __name__ == "__main__":
    django.setup()
    execute_from_command_line(sys.argv)
