"""The reference of `bench.calls`: the same route in plain FastAPI on uvicorn."""

import socket
import sys

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel


class EchoRequest(BaseModel):
    text: str
    number: int


class EchoResponse(BaseModel):
    text: str
    number: int


app = FastAPI()


@app.post("/echo")
async def echo(body: EchoRequest) -> EchoResponse:
    return EchoResponse(text=body.text, number=body.number)


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(app, log_level="warning", access_log=False)
    uvicorn.Server(config).run([listener])
    sys.exit(0)
