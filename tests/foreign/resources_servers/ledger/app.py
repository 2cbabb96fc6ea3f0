"""A ledger with everything FastAPI allows: its own application, middleware, lifespan, dependencies, forms of
answers. Written only against the published interface."""

from collections import defaultdict
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import BackgroundTasks, Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel
from utils import as_money

from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    SimpleResourcesServer,
)
from nemo_gym.server_utils import SESSION_ID_KEY, is_nemo_gym_fastapi_entrypoint


class OutOfMoney(Exception):
    pass


class Entry(BaseModel):
    amount: str
    note: str = ""


class Balance(BaseModel):
    balance: str


class LedgerConfig(BaseResourcesServerConfig):
    currency: str = "$"


class LedgerServer(SimpleResourcesServer):
    config: LedgerConfig

    def setup_webserver(self) -> FastAPI:
        @asynccontextmanager
        async def lifespan(app: FastAPI):
            self._balances = defaultdict(int)
            self._audited = []
            yield
            self._balances.clear()

        app = FastAPI(lifespan=lifespan)
        self.setup_session_middleware(app)

        @app.middleware("http")
        async def stamp(request: Request, call_next):
            response = await call_next(request)
            response.headers["x-ledger"] = self.config.name
            return response

        @app.exception_handler(OutOfMoney)
        async def out_of_money(request: Request, error: OutOfMoney):
            return JSONResponse({"detail": "there is not enough money"}, status_code=409)

        app.post("/seed_session")(self.open_account)
        app.post("/verify")(self.verify)
        app.post("/aggregate_metrics")(self.aggregate_metrics)
        app.post("/book")(self.book)
        app.post("/statement")(self.statement)
        app.post("/stream")(self.stream)
        app.post("/refuse")(self.refuse)
        return app

    def session(request: Request) -> str:
        return request.session[SESSION_ID_KEY]

    async def open_account(self, request: Request):
        self._balances[request.session[SESSION_ID_KEY]] = as_money("$0")
        return {}

    async def book(self, entry: Entry, session: Annotated[str, Depends(session)], tasks: BackgroundTasks) -> Balance:
        balance = self._balances[session] + as_money(entry.amount)
        if balance < 0:
            raise OutOfMoney
        self._balances[session] = balance
        tasks.add_task(self._audited.append, entry.note)
        return Balance(balance=f"{self.config.currency}{balance}")

    def statement(self, session: Annotated[str, Depends(session)], accept: Annotated[str, Header()] = "*/*"):
        return PlainTextResponse(f"balance {self._balances[session]}")

    async def stream(self, request: Request):
        async def parts():
            for number in range(3):
                yield f"{number},".encode()

        return StreamingResponse(parts())

    async def refuse(self, body: Entry) -> Balance:
        raise HTTPException(status_code=503, detail="closed for the night")

    def verify(self, request: Request, body: BaseVerifyRequest):
        balance = self._balances.pop(request.session[SESSION_ID_KEY])
        wanted = as_money(body.model_extra["expected_balance"])
        return {**body.model_dump(exclude_unset=True), "reward": float(balance == wanted), "balance": float(balance)}


if __name__ == "__main__":
    LedgerServer.run_webserver()
elif is_nemo_gym_fastapi_entrypoint(__file__):
    app = LedgerServer.run_webserver()
