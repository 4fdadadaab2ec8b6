"""A web application that makes jobs: Starlette, and FastAPI alike. The loop never waits for the store.

    pip install 'batchq[ingress]'
    batchq start -n 1 --concurrency 50 producer_starlette:app      # terminal 1
    uvicorn producer_starlette:web --port 8000                     # terminal 2
    curl -d '{"to": "ada@example.org"}' http://127.0.0.1:8000/mail

With FastAPI the endpoint reads `@web.post("/mail", status_code=202)`, and the rest stays.
"""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from batchq import App

app = App()


@app.job(queue="mail", timeout=30)
async def send_mail(to: str) -> None:
    print("mail to", to, flush=True)


async def mail(request: Request) -> JSONResponse:
    data = await request.json()
    ref = await send_mail.aenqueue(data["to"])
    return JSONResponse({"id": ref.id, "spooled": ref.spooled}, status_code=202)


web = Starlette(routes=[Route("/mail", mail, methods=["POST"])])
