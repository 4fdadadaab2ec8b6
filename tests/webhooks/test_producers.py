"""The examples of web applications: a request becomes a job, and the job runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

ASK = {
    "producer_starlette": """
from starlette.testclient import TestClient
answers = [TestClient(module.web).post("/mail", json={"to": "ada"})]
""",
    "producer_flask": """
answers = [module.web.test_client().post("/mail", json={"to": "ada"})]
""",
    "producer_django": """
import asyncio
from django.test import AsyncClient, TransactionTestCase
async def ask():
    client = AsyncClient()
    post = lambda path: client.post(path, {"to": "ada"}, content_type="application/json")
    return [await post("/mail"), await post("/order")]
answers = asyncio.run(ask())
""",
}


@pytest.mark.parametrize("name", list(ASK))
def test_request_becomes_a_job(name: str, tmp_path: Path) -> None:
    """202 for the sender, one job for the worker."""
    program = f"import {name} as module\n{ASK[name]}\nprint([answer.status_code for answer in answers])"
    kept = {key: value for key, value in os.environ.items() if not key.startswith("BATCHQ_")}
    env = kept | {"BATCHQ_URL": f"spool:{tmp_path / 'spool'}", "PYTHONPATH": str(EXAMPLES)}
    done = subprocess.run(
        [sys.executable, "-W", "error::RuntimeWarning", "-c", program],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    count = 2 if name == "producer_django" else 1
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str([202] * count)
    burst = subprocess.run(
        [sys.executable, "-m", "batchq", "start", "-n", "1", "-q", "mail", "--burst", f"{name}:app"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert burst.returncode == 0, burst.stderr
    assert burst.stdout.count("mail to ada") == count
