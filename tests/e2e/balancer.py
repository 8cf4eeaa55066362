"""What stands before several gateways: each connection goes to the first of them that takes it."""

import socket
import threading
from contextlib import suppress


class Balancer:
    """On a port of its own, or `at` one; a connection lives as long as both of its ends."""

    def __init__(self, *ports: int, at: int = 0) -> None:
        self._ports = ports
        self._listener = socket.create_server(("127.0.0.1", at))
        self._open: set[socket.socket] = set()
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> "Balancer":
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for each in list(self._open):
            _end(each)

    def lead_to(self, *ports: int) -> None:
        """From now on; connections that are open stay."""
        self._ports = ports

    def _accept(self) -> None:
        with suppress(OSError):  # it was closed
            while True:
                client, _ = self._listener.accept()
                gateway = self._dial()
                if gateway is None:
                    client.close()
                    continue
                self._open |= {client, gateway}
                for ends in ((client, gateway), (gateway, client)):
                    threading.Thread(target=self._pump, args=ends, daemon=True).start()

    def _dial(self) -> socket.socket | None:
        for port in self._ports:
            with suppress(OSError):
                return socket.create_connection(("127.0.0.1", port))
        return None

    def _pump(self, from_: socket.socket, to: socket.socket) -> None:
        with suppress(OSError):
            while data := from_.recv(1 << 16):
                to.sendall(data)
        for each in (from_, to):
            _end(each)
            self._open.discard(each)


def _end(each: socket.socket) -> None:
    with suppress(OSError):
        each.shutdown(socket.SHUT_RDWR)
    each.close()
