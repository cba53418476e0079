"""Open the page on a port of this machine."""

from __future__ import annotations

import argparse
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mtp_mlx import weights
from mtp_mlx.engine import Engine

if TYPE_CHECKING:
    from gradio import Blocks

    from mtp_mlx.pipeline import Pipeline


def main(argv: list[str] | None = None) -> None:
    """Serve the page until Ctrl-C; exit with one line where that is not possible."""
    args = _arguments(argv)
    head = args.head or (weights.HEAD if weights.HEAD.is_dir() else None)
    for folder in filter(None, (args.backbone, head)):
        if not folder.is_dir():
            sys.exit(f"no weights at {folder}: get the repository again, or give --backbone or --head")
    host = f"[{args.host}]" if ":" in args.host else args.host  # IPv6, as addresses of pages and Gradio have it
    try:
        for claimed in (args.host, "127.0.0.1"):  # Gradio tries that one, whatever it is to listen on
            _claim(claimed, args.port)
    except socket.gaierror as error:
        sys.exit(f"there is no host {args.host!r} ({error.strerror}): give a name or address of this machine as --host")
    except OSError as error:
        sys.exit(f"cannot open http://{host}:{args.port}: {error.strerror or error}; choose another --port")
    with suppress(KeyboardInterrupt):
        serve(host, args.port, args.backbone, head)
    os._exit(0)  # at once: an ordinary exit aborts where MLX's thread is at work


def serve(host: str, port: int, backbone: Path, head: Path | None) -> None:
    """Show the page at ``host:port``; returns only by an exception."""
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # before gradio is imported
    _keep_local()
    from mtp_mlx.ui import page

    engine = Engine(lambda request, report: _load(backbone, head, request.profile, report))
    blocks = page.build(engine, has_head=head is not None)
    print(f"Open {launch(blocks, host, port)} in a browser. Ctrl-C quits.", flush=True)
    threading.Event().wait()


def launch(blocks: Blocks, host: str, port: int) -> str:
    """Start the web server in the background, closed to everything but the page; return the page's address."""
    from mtp_mlx.ui import page

    _, address, _ = blocks.launch(
        server_name=host,
        server_port=port,
        theme=page.theme(),
        css=page.css(),
        share=False,
        run_history=False,
        footer_links=[],
        ssr_mode=False,
        mcp_server=False,
        pwa=False,
        enable_monitoring=False,
        quiet=True,
        prevent_thread_lock=True,
    )
    return address


def _load(backbone: Path, head: Path | None, profile: str, report: weights.Report) -> Pipeline:
    """Import and load everything that computes, in the engine's thread."""
    from mtp_mlx import blas

    if problem := blas.load().problem:
        print(problem, file=sys.stderr, flush=True)
    from mtp_mlx import pipeline

    return pipeline.load(backbone, head, profile=profile, report=report)


def _claim(host: str, port: int) -> None:
    """Raise OSError where the port cannot be had: Gradio would look for another one or wait."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)


def _keep_local() -> None:
    """Gradio asks its own server whether it is up: that question must not go to a proxy."""
    for name in ("NO_PROXY", "no_proxy"):
        os.environ[name] = ",".join(filter(None, (os.environ.get(name), "127.0.0.1,localhost")))


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Watch a frozen model write in fewer passes, in a browser.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_port, default=7860, help="port to listen on (default: %(default)s)")
    parser.add_argument("--backbone", type=Path, default=weights.BACKBONE, metavar="DIR", help="the frozen model")
    parser.add_argument("--head", type=Path, metavar="DIR", help="its trained MTP head (default: the one in weights/)")
    return parser.parse_args(argv)


def _port(text: str) -> int:
    if not (text.isdecimal() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: give 1 to 65535")
    return int(text)
