"""What holds for every answer: headers that keep a browser to the page's own files, and no requests from other sites' pages."""

from __future__ import annotations

from collections.abc import Collection

from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
SAME_ORIGIN = {"Cross-Origin-Resource-Policy": "same-origin"}
NOT_KEPT = (b"cache-control", b"no-store")  # unless the answer says otherwise


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, origins: Collection[str] = ()) -> None:
        self.app, self.origins = app, frozenset(origins)
        own = HEADERS if self.origins else HEADERS | SAME_ORIGIN
        self.headers = [(name.lower().encode(), value.encode()) for name, value in own.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"] = [*message.get("headers", ()), *self.headers]
                if not any(name == NOT_KEPT[0] for name, _ in headers):
                    headers.append(NOT_KEPT)
            await send(message)

        if self._is_foreign(scope):
            await JSONResponse({"error": "pages of other sites may not send requests here; --cors-origin lets them."},
                               403)(scope, receive, send_guarded)
            return
        await self.app(scope, receive, send_guarded)

    def _is_foreign(self, scope: Scope) -> bool:
        """Whether a browser says that another site's page sends this. A form needs no leave by CORS to be sent."""
        headers = Headers(scope=scope)
        if scope["method"] in ("GET", "HEAD", "OPTIONS") or headers.get("origin") in self.origins:
            return False
        return headers.get("sec-fetch-site", "same-origin") not in ("same-origin", "none")
