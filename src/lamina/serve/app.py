"""The application: all endpoints, behind the guard."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from lamina.serve.completions import completion_routes, openai_error
from lamina.serve.deepl import deepl_error, deepl_routes
from lamina.serve.guard import Guard
from lamina.serve.libretranslate import libretranslate_routes
from lamina.serve.masked_routes import masked_routes
from lamina.serve.own_routes import own_routes
from lamina.serve.service import Service, plain_error

SAID = {404: "there is nothing at this path.", 405: "this path is not for that method."}


def build_app(service: Service, *, has_page: bool = True, origins: Collection[str] = ()) -> Starlette:
    async def refused(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        shape: Any = next((shape for prefix, shape in (("/v1/", openai_error), ("/v2/", deepl_error))
                           if request.url.path.startswith(prefix)), plain_error)
        service.counters.answered("none", error.status_code, 0.0)
        return JSONResponse(shape(SAID.get(error.status_code, "this request cannot be served."), error.status_code),
                            error.status_code, headers=error.headers)

    middleware = [Middleware(Guard, origins=origins)]
    if origins:
        middleware.append(Middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["GET", "POST"],
                                     allow_headers=["Authorization", "Content-Type", "X-API-Key"]))
    routes = [*own_routes(service, has_page=has_page), *libretranslate_routes(service), *deepl_routes(service),
              *completion_routes(service), *masked_routes(service)]
    return Starlette(routes=routes, middleware=middleware, exception_handlers={HTTPException: refused})
