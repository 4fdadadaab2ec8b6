"""A web application that makes jobs: Flask. A thread a request, so that the plain enqueue is right.

    pip install flask
    batchq start -n 1 producer_flask:app                           # terminal 1
    flask --app producer_flask:web run --port 8000                 # terminal 2
    curl -H 'content-type: application/json' -d '{"to": "ada@example.org"}' http://127.0.0.1:8000/mail

The jobs stand in the spool of this host, or where BATCHQ_URL says.
"""

from __future__ import annotations

from flask import Flask, request

from batchq import App

app = App()
web = Flask(__name__)


@app.job(queue="mail", timeout=30)
def send_mail(to: str) -> None:
    print("mail to", to, flush=True)


@web.post("/mail")
def mail() -> tuple[dict[str, object], int]:
    ref = send_mail.enqueue(request.json["to"])
    return {"id": ref.id, "spooled": ref.spooled}, 202
