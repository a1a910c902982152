"""Starting a server: what is checked before it listens, and how it ends."""

import ipaddress
import socket
from typing import TYPE_CHECKING, Any

from continua.errors import ConfigError, install

if TYPE_CHECKING:
    from continua.serve.app import Server

BACKLOG = 2048  # connections that wait to be taken
GRACE = 30  # seconds that texts under way have to end after SIGTERM


def is_loopback(host: str) -> bool:
    """Whether a host is this machine alone.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("0.0.0.0")
    (True, True, False)
    """
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_open(host: str, key: str | None) -> None:
    """Refuse to listen beyond this machine without a key."""
    if is_loopback(host) or key:
        return
    remedy = "Set CONTINUA_API_KEY, or listen on 127.0.0.1."
    raise ConfigError("a server beyond this machine needs an API key", got=f"--host {host} and none", remedy=remedy)


def bound(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
    except OSError as problem:
        made.close()
        remedy = "Choose another: --port 8001."
        raise ConfigError("the port cannot be listened to", got=f"{host}:{port}, {problem}", remedy=remedy) from problem
    return made


def web_server(server: "Server", grace: int = GRACE) -> Any:
    """The uvicorn server of the endpoints; ``run(sockets=[…])`` serves until SIGTERM or Ctrl-C."""
    require_web()
    from continua.serve.app import application

    return running(application(server), grace)


def require_web() -> None:
    """Say what to install where the packages of a web server are not there."""
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as missing:
        remedy = f"Install the extra: {install('serve')}."
        raise ConfigError("a server needs fastapi and uvicorn", got=str(missing), remedy=remedy) from missing


def running(app: Any, grace: int = GRACE) -> Any:
    """The uvicorn server of an application."""
    import uvicorn

    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=grace,
        timeout_keep_alive=15,
        backlog=BACKLOG,
        h11_max_incomplete_event_size=64 * 1024,
    )
    return uvicorn.Server(config)
