"""`lamina serve`: models behind HTTP."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lamina import console
from lamina.api import LanguageModel, MaskedLanguageModel, Translator
from lamina.api.from_flags import load_model
from lamina.config.generate_options import ModelFiles
from lamina.config.search_options import given_options
from lamina.config.serve_options import NamedModel, ServeConfig
from lamina.decode.cascade import Cascade, cascade_path
from lamina.errors import ConfigError


def run(config: ServeConfig) -> None:
    try:
        import httptools  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"lamina serve needs the package {error.name}: pip install 'lamina[serve]'.") from None
    from lamina.serve.api_keys import load_keys
    from lamina.serve.app import build_app
    from lamina.serve.lane_workers import lane_workers
    from lamina.serve.opening import opened
    from lamina.serve.running import listening_socket, run_server
    from lamina.serve.service import Service

    keys = load_keys(config.api_keys)
    own = listening_socket(config.host, config.port)
    service = Service(limits=config.limits, keys=keys, logs_requests=config.logs_requests)
    cascades = Cascades(config.cascades, given_options(config.search))
    # Processes are forked: before there are threads.
    models = [(model, loaded := _loaded(model), lane_workers(loaded, config.slots) if isinstance(loaded, Translator) else None)
              for model in config.files.each()]
    for model, loaded, lanes in models:
        console.notice(opened(service, model.name, loaded, slots=config.slots, defaults=given_options(config.search),
                              queue_limit=config.limits.queue, cascade=cascades.of(loaded, model.files), depth=config.depth,
                              seed=config.files.seed, remove_bpe=config.remove_bpe, lanes=lanes))
    cascades.check_use()
    app = build_app(service, has_page=config.has_page, origins=config.cors_origins)
    host, port = own.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if not keys.are_needed and host not in ("127.0.0.1", "::1"):
        console.warn(f"anyone who reaches {shown}:{port} can use these models: there are no keys (--api-keys).")
    run_server(app, service, own, grace=config.limits.grace, max_connections=config.limits.max_connections,
               trusted_proxies=config.trusted_proxies,
               started=lambda server: console.notice(f"serving on http://{shown}:{port}; Ctrl-C stops"))
    console.notice("stopped")


class Cascades:
    """Those that were named, and those beside the checkpoints."""

    def __init__(self, paths: Sequence[str], search: Mapping[str, object]) -> None:
        self.named = {path: Cascade.load(path) for path in paths}
        self.unused, self.search = set(paths), search

    def of(self, model: Any, files: ModelFiles) -> Cascade | None:
        if not isinstance(model, Translator):
            return None
        for path, cascade in self.named.items():
            if cascade.model == model.digest:
                self.unused.discard(path)
                return self._told(path, cascade)
        beside = cascade_path(files.paths)
        if not beside.is_file():
            return None
        cascade = Cascade.load(beside)
        if cascade.model != model.digest:
            console.warn(f"{beside} was chosen for another model than the one beside it, and is left out. Run `lamina "
                         "calibrate` again.")
            return None
        return self._told(beside, cascade)

    def _told(self, path: str | Path, cascade: Cascade) -> Cascade:
        if different := cascade.differences(self.search):
            console.warn(f"the threshold of {path} was chosen with other options than these ({', '.join(different)}), so what "
                         "it loses is not known.")
        return cascade

    def check_use(self) -> None:
        for path in sorted(self.unused):
            raise ConfigError(f"none of the models is the one that {path} was chosen for. Leave it out, or run `lamina "
                              "calibrate` on the checkpoint that is served.")


def _loaded(model: NamedModel) -> Any:
    languages = model.name.split("-", 1) if model.name and "-" in model.name else [None, None]
    return load_model(model.files, Translator, LanguageModel, MaskedLanguageModel, languages=languages)
