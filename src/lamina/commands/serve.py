"""`lamina serve`: models behind HTTP."""

from __future__ import annotations

from typing import Any

from lamina import console
from lamina.api import LanguageModel, MaskedLanguageModel, Translator
from lamina.api.from_flags import load_model
from lamina.config.search_options import SearchConfig
from lamina.config.serve_options import NamedModel, ServeConfig
from lamina.errors import ConfigError
from lamina.fields import flatten, unique_leaves


def run(config: ServeConfig) -> None:
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"lamina serve needs the package {error.name}: pip install 'lamina[serve]'.") from None
    from lamina.serve.api_keys import load_keys
    from lamina.serve.app import build_app
    from lamina.serve.opening import opened
    from lamina.serve.running import listening_socket, run_server
    from lamina.serve.service import Service

    keys = load_keys(config.api_keys)
    own = listening_socket(config.host, config.port)
    service = Service(limits=config.limits, keys=keys, logs_requests=config.logs_requests)
    for model in config.files.each():
        console.notice(opened(service, model.name, _loaded(model), slots=config.slots, defaults=given_options(config.search),
                              queue_limit=config.limits.queue))
    app = build_app(service, has_page=config.has_page, origins=config.cors_origins)
    host, port = own.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if not keys.are_needed and host not in ("127.0.0.1", "::1"):
        console.warn(f"whoever reaches {shown}:{port} may use these models: there are no keys (--api-keys).")
    run_server(app, service, own, grace=config.limits.grace, max_connections=config.limits.max_connections,
               trusted_proxies=config.trusted_proxies,
               started=lambda server: console.notice(f"serving on http://{shown}:{port}; Ctrl-C stops"))
    console.notice("stopped")


def _loaded(model: NamedModel) -> Any:
    languages = model.name.split("-", 1) if model.name and "-" in model.name else [None, None]
    return load_model(model.files, Translator, LanguageModel, MaskedLanguageModel, languages=languages)


def given_options(search: SearchConfig) -> dict[str, object]:
    """What is not at its default, by flag with underscores: a request's own options go on top."""
    values = flatten(search)
    return {leaf.name.replace("-", "_"): values[leaf.name] for leaf in unique_leaves(SearchConfig)
            if values[leaf.name] != leaf.default}
