"""What fits into memory: said before it is asked for."""

from pathlib import Path

from continua.errors import ConfigError

FREE_OF_CHARGE = 64 * 2**20  # what is smaller is not asked about
_SUFFIXES = ("B", "kB", "MB", "GB", "TB", "PB")


def available() -> int:
    """Bytes that can be used without pushing others out; a generous guess where the system does not say."""
    limits = [limit for limit in (_of_the_machine(), _of_the_group(), _of_the_process()) if limit is not None]
    return min(limits, default=2**40)


def _of_the_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, ValueError, StopIteration):
        return None


def _of_the_group() -> int | None:
    """What a container may still take."""
    home = Path("/sys/fs/cgroup")
    try:
        limit = int((home / "memory.max").read_text(encoding="ascii"))
        return max(0, limit - int((home / "memory.current").read_text(encoding="ascii")))
    except (OSError, ValueError):  # no such group, or no limit
        return None


def _of_the_process() -> int | None:
    """What ``ulimit -v`` leaves."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        taken = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        return max(0, limit - taken)
    except (ImportError, OSError, ValueError):  # no such limits, or no such file
        return None


def fits(size: float) -> bool:
    """Whether so many bytes may be asked for."""
    return size <= FREE_OF_CHARGE or size <= available()


def require(size: float, what: str, remedy: str) -> None:
    """Refuse what does not fit."""
    if not fits(size):
        raise ConfigError(f"{what} needs {readable(size)}", got=f"{readable(available())} of memory", remedy=remedy)


def readable(size: float) -> str:
    """Bytes for people.

    >>> readable(1.2e9)
    '1.2 GB'
    """
    power = 0
    size = min(size, 10**30)
    while size >= 1000 and power < len(_SUFFIXES) - 1:
        size /= 1000
        power += 1
    return f"{size:.3g} {_SUFFIXES[power]}"
