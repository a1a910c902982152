"""``python -m continua.cli``."""

from continua.cli import main

main()
