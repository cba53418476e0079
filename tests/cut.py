"""A line to a server that can be cut, go dead, and lead to another server: what a browser sees of a network."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress


class Line:
    """Passes on what comes in at ``port`` to the port ``to``, as long as it is whole."""

    def __init__(self, to: int):
        self.to = to
        self._whole = threading.Event()  # cleared: it is dead, and takes nothing and gives nothing
        self._whole.set()
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._ends.clear()

    def mend(self, to: int | None = None) -> None:
        """Take connections again, to another server if one is given."""
        self.to = to or self.to
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def freeze(self) -> None:
        """Go dead: no connection ends, and nothing comes through."""
        self._whole.clear()

    def thaw(self) -> None:
        """Pass on again, also what came in the meantime."""
        self._whole.set()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", self.to))
                self._ends += [here, there]
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._whole.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
