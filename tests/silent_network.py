"""A TCP proxy whose network falls silent: what is sent does not arrive, and neither end is told so."""

import socket
import threading
from contextlib import suppress


class SilentNetwork:
    """In front of one address; `silence` holds for the connections of before and of meanwhile for good."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._silent = threading.Event()
        self._sockets = [self._listener]
        #: that were begun
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def silence(self) -> None:
        self._silent.set()

    def heal(self) -> None:
        """For connections from now on."""
        self._silent = threading.Event()

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                self.connections += 1
                self._sockets.append(near)
                if self._silent.is_set():
                    continue
                far = socket.create_connection(self._target)
                self._sockets.append(far)
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=_forward, args=(*ends, self._silent), daemon=True).start()


def _forward(source: socket.socket, target: socket.socket, silent: threading.Event) -> None:
    with suppress(OSError):
        while True:
            data = source.recv(1 << 16)
            if silent.is_set():
                return
            if not data:
                target.shutdown(socket.SHUT_WR)
                return
            target.sendall(data)
