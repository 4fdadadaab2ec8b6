"""A web application that makes jobs: Django, in one file. A job is enqueued once the transaction is committed.

    pip install django uvicorn
    batchq start -n 1 producer_django:app                          # terminal 1
    uvicorn producer_django:web --port 8000                        # terminal 2
    curl -d '{"to": "ada@example.org"}' http://127.0.0.1:8000/mail

Enqueued inside a transaction, a job may run before the commit and not see its rows, or run though it is rolled back:
`transaction.on_commit` is the place.
"""

from __future__ import annotations

import json
import secrets

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.db import transaction
from django.http import HttpRequest, JsonResponse
from django.urls import path

from batchq import App

app = App()


@app.job(queue="mail", timeout=30)
def send_mail(to: str) -> None:
    print("mail to", to, flush=True)


async def mail(request: HttpRequest) -> JsonResponse:
    """Nothing is written here but the job, so it can go at once, without the loop waiting for it."""
    ref = await send_mail.aenqueue(json.loads(request.body)["to"])
    return JsonResponse({"id": ref.id, "spooled": ref.spooled}, status=202)


def order(request: HttpRequest) -> JsonResponse:
    """A plain view with a transaction."""
    to = json.loads(request.body)["to"]
    with transaction.atomic():
        transaction.on_commit(lambda: send_mail.enqueue(to))
    return JsonResponse({}, status=202)


settings.configure(
    SECRET_KEY=secrets.token_hex(),
    ALLOWED_HOSTS=["127.0.0.1", "testserver"],
    ROOT_URLCONF=__name__,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
)
django.setup()
urlpatterns = [path("mail", mail), path("order", order)]
web = get_asgi_application()
